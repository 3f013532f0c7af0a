"""Does the key bias tell what attention does? (Fig. 5, 6, 9, 18-21 of the bias paper)

Pearson r over the columns between the bias and (a) the column mean of the scaled q k^T without
bias, (b) the attention received, bias included; per image and head, then averaged. And the overlap
of the bias's top-k columns with those that receive the most attention. The model runs without
pruning.

Example:
    python tools/analysis_tools/bias_correlation.py CONFIG CKPT --images dataset --num-images 200
"""

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
    parser,
    report,
    shown_layers,
    subjects,
    write_figure,
)
from mmext.cli.launch import one_clear_error

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


def main(argv=None):
    command = parser(__doc__, num_images=200)
    command.add_argument('--ratios', type=float, nargs='+', default=[.5, .1],
                         help='k / N of the overlap')
    args = command.parse_args(argv)
    [subject] = subjects(args)
    make_dense(subject.backbone)
    layers = analyzed_layers(subject.backbone, args.layers)

    def numbers_of(layer):
        heads = chosen_heads(args, layer.tensors['bias'].shape[1])
        tensors = {name: layer.tensors[name][:, heads] for name in NEED}
        received = column_mean(tensors['attn'])
        return bias_correlation(tensors) | {
            f'overlap at {ratio:g}': overlap(tensors['bias'], received, ratio)
            for ratio in args.ratios}

    found = collect(args, subject, numbers_of, NEED)
    series = {name: mean_and_spread(values, (1, 2)) for name, values in found.items()}
    names = {'logits': 'with column mean of q kᵀ / √d', 'attention': 'with attention received'}
    correlation = [Line(label, layers, *series[name], color=i)
                   for i, (name, label) in enumerate(names.items())]
    overlaps = [Line(f'k = {ratio:g} N (chance {ratio:g})', layers,
                     *series[f'overlap at {ratio:g}'], color=i + 2)
                for i, ratio in enumerate(args.ratios)]
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


if __name__ == '__main__':
    with one_clear_error():
        main()
