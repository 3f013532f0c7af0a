"""What tools/analysis_tools/bias_correlation.py draws and computes."""

from mmext.analysis.attention import bias_correlation, column_mean, overlap, pearson
from mmext.analysis.drawing import Line, Panel, line_panels, scatter_grid
from mmext.analysis.intermediates import analyzed_layers
from mmext.cli.analysis import (
    batches,
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


def clouds(args, subject, head: int):
    """For the first image: (bias, column mean, r) of each layer shown, against both partners."""
    batch = next(batches(args, subject, progress=False))
    rows, titles = ([], []), []
    for layer in layers_of(subject, batch.inputs, shown_layers(args, subject.backbone, 6), NEED):
        if layer.first:
            continue
        titles.append(f'block {layer.index}')
        bias = layer.tensors['bias'][0, head]
        for row, name in zip(rows, ('logits', 'attn'), strict=True):
            partner = column_mean(layer.tensors[name])[0, head]
            row.append((bias.cpu().numpy(), partner.cpu().numpy(), float(pearson(bias, partner))))
    return batch.names[0], rows, titles


def run(args) -> None:
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

    head = chosen_heads(args, found['logits'].shape[2], [0])[0]
    args.num_images = 1
    name, rows, titles = clouds(args, subject, head)
    figure = scatter_grid(
        rows, titles, 'key bias b', ['column mean of q kᵀ / √d', 'attention received'],
        f'{name}, head {head}: one point a token')
    figures.append(write_figure(args, [subject], figure, 'bias_scatter'))
    report(args, 'bias_correlation', [subject], {
        'images': count, 'layers': layers,
        'mean': {key: mean for key, (mean, _) in series.items()},
        'spread': {key: spread for key, (_, spread) in series.items()},
        'scatter_r': {key: [r for _, _, r in row]
                      for key, row in zip(('logits', 'attention'), rows, strict=True)},
    }, figures)
