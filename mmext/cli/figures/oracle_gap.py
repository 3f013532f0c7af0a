"""What tools/analysis_tools/oracle_gap.py draws and computes."""

from mmext.analysis.attention import column_mean, oracle_gap, retained_mass
from mmext.analysis.drawing import Line, Panel, line_panels
from mmext.analysis.intermediates import analyzed_layers
from mmext.cli.analysis import (
    check_results,
    chosen_heads,
    collect,
    make_dense,
    mean_and_spread,
    report,
    subjects,
    write_figure,
)

KINDS = {'query': ('a set for each query', '--'), 'global': ('one set', '-'),
         'bias': ("the bias's set", ':')}


def measure(args, subject) -> dict:
    """name -> mean and spread over images, (layers, ratios)."""
    biased = getattr(subject.backbone, 'with_key_bias', False)

    def numbers_of(layer):
        attn = layer.tensors['attn'][:, chosen_heads(args, layer.tensors['attn'].shape[1])]
        found = oracle_gap(attn, args.keep_ratio)
        if biased:
            bias = layer.tensors['bias'][:, chosen_heads(args, layer.tensors['bias'].shape[1])]
            found['bias'] = retained_mass(column_mean(attn), bias, args.keep_ratio)
        return found

    make_dense(subject.backbone)
    found = collect(args, subject, numbers_of, ['attn'])
    numbers = {name: mean_and_spread(values, (1, 2)) for name, values in found.items()}
    return {'images': found['gap'].shape[1],
            'layers': list(analyzed_layers(subject.backbone, args.layers)),
            'mean': {name: mean for name, (mean, _) in numbers.items()},
            'spread': {name: spread for name, (_, spread) in numbers.items()}}


def run(args) -> None:
    check_results(args, 'oracle_gap', ['oracle_gap'])
    models = subjects(args)
    found = {subject.label: measure(args, subject) for subject in models}
    panels, gaps = [], []
    for m, (label, numbers) in enumerate(found.items()):
        layers, mean, spread = numbers['layers'], numbers['mean'], numbers['spread']
        panels.append(Panel([
            Line(f'r = {ratio:g}, {name}', layers, mean[kind][:, i], style=style, color=i)
            for kind, (name, style) in KINDS.items() if kind in mean
            for i, ratio in enumerate(args.keep_ratio)
        ], f'Retained attention, {label}', 'share of the attention mass'))
        gaps += [Line(f'r = {ratio:g}' + (f', {label}' if len(found) > 1 else ''), layers,
                      mean['gap'][:, i], spread['gap'][:, i], style=('-', '--', '-.', ':')[m % 4],
                      color=i) for i, ratio in enumerate(args.keep_ratio)]
    count = found[models[0].label]['images']
    panels.append(Panel(gaps, f'Oracle gap, mean and spread over {count} images',
                        'share of the attention mass', zero=True))
    figure = line_panels(panels, 'block')
    path = write_figure(args, models, figure, 'oracle_gap')
    report(args, 'oracle_gap', models, {'keep_ratio': args.keep_ratio, 'models': found}, [path])
