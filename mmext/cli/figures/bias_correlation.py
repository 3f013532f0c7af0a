"""What tools/analysis_tools/bias_correlation.py draws and computes."""

import numpy as np
import torch

from mmext.analysis.attention import bias_correlation, column_mean, overlap, pearson
from mmext.analysis.drawing import Line, Panel, line_panels, scatter_grid
from mmext.analysis.intermediates import analyzed_layers
from mmext.cli.analysis import (
    batches,
    check_results,
    chosen_heads,
    collect,
    layers_of,
    make_dense,
    mean_and_spread,
    report,
    shown_layers,
    subjects,
    write_figure,
)

NEED = ('logits', 'bias', 'attn')


POINTS = 20_000  # of a panel: more hide each other


def clouds(args, subject):
    """Of all images and chosen heads: (bias, column mean, mean r) of each layer shown, against both
    partners, and the number of images.

    Every head of every image is brought to mean 0 and deviation 1 first, since scales differ; r is
    the mean over heads and images of their own correlations, as in the curves.
    """
    layers = shown_layers(args, subject.backbone, 6)
    found = {layer: {name: ([], [], []) for name in ('logits', 'attn')} for layer in layers}
    count = 0
    for batch in batches(args, subject, progress=False):
        count += len(batch.names)
        for layer in layers_of(subject, batch.inputs, layers, NEED):
            heads = chosen_heads(args, layer.tensors['bias'].shape[1])
            bias = layer.tensors['bias'][:, heads]
            for name, (x, y, r) in found[layer.index].items():
                partner = column_mean(layer.tensors[name])[:, heads]
                x.append(standardized(bias).flatten().cpu().numpy())
                y.append(standardized(partner).flatten().cpu().numpy())
                r.append(pearson(bias, partner).flatten().cpu().numpy())
    rows = ([], [])
    for layer in layers:
        for row, (x, y, r) in zip(rows, found[layer].values(), strict=True):
            x, y = np.concatenate(x), np.concatenate(y)
            some = slice(None, None, -(-len(x) // POINTS))
            row.append((x[some], y[some], float(np.nanmean(np.concatenate(r)))))
    return rows, [f'block {layer}' for layer in layers], count


def standardized(x: torch.Tensor) -> torch.Tensor:
    """(B, H, N) to mean 0 and deviation 1 over N."""
    x = x.double() - x.double().mean(-1, keepdim=True)
    return x / x.std(-1, keepdim=True, correction=0).clamp_min(1e-12)


def run(args) -> None:
    check_results(args, 'bias_correlation', ['bias_correlation', 'bias_scatter'])
    [subject] = subjects(args)
    make_dense(subject.backbone)
    layers = analyzed_layers(subject.backbone, args.layers)

    def numbers_of(layer):
        heads = chosen_heads(args, layer.tensors['bias'].shape[1])
        tensors = {name: layer.tensors[name][:, heads] for name in NEED}
        received = column_mean(tensors['attn'])
        return bias_correlation(tensors) | {
            f'overlap at {ratio:g}': overlap(tensors['bias'], received, ratio)
            for ratio in args.keep_ratio}

    found = collect(args, subject, numbers_of, NEED)
    series = {name: mean_and_spread(values, (1, 2)) for name, values in found.items()}
    names = {'logits': 'with column mean of q kᵀ / √d', 'attention': 'with attention received'}
    correlation = [Line(label, layers, *series[name], color=i)
                   for i, (name, label) in enumerate(names.items())]
    overlaps = [Line(f'k = {ratio:g} N (chance {ratio:g})', layers,
                     *series[f'overlap at {ratio:g}'], color=i + 2)
                for i, ratio in enumerate(args.keep_ratio)]
    count = found['logits'].shape[1]
    figure = line_panels([
        Panel(correlation, 'Correlation of the key bias', 'Pearson r', zero=True),
        Panel(overlaps, 'Top-k of the bias among top-k of attention received', 'overlap'),
    ], 'block', f'{subject.label}: mean and spread over {count} images')
    figures = [write_figure(args, [subject], figure, 'bias_correlation')]

    rows, titles, images = clouds(args, subject)
    heads = 'all heads' if args.heads is None else f'heads {args.heads}'
    figure = scatter_grid(
        rows, titles, 'key bias b', ['column mean of q kᵀ / √d', 'attention received'],
        f'{subject.label}: {images} images, {heads}; one point a token and head, standardized')
    figures.append(write_figure(args, [subject], figure, 'bias_scatter'))
    report(args, 'bias_correlation', [subject], {
        'images': count, 'layers': layers,
        'mean': {key: mean for key, (mean, _) in series.items()},
        'spread': {key: spread for key, (_, spread) in series.items()},
        'scatter_r': {key: [r for _, _, r in row]
                      for key, row in zip(('logits', 'attention'), rows, strict=True)},
    }, figures)
