"""What tools/analysis_tools/coding_rate.py draws and computes."""

from mmext.analysis.drawing import Line, Panel, line_panels
from mmext.analysis.intermediates import analyzed_layers
from mmext.analysis.membership import layer_coding_rates, layer_rate_reduction, tensors_at
from mmext.cli.analysis import (
    check_results,
    collect,
    mean_and_spread,
    report,
    subjects,
    write_figure,
)
from mmext.ops.coding_rate import coding_rate_ceiling

KINDS = {'variational': 'Variational coding rate', 'exact': 'Exact coding rate (log det)'}
MCR2 = {'whole': ('R(Z)', '-'), 'parts': ('R^c(Z, Π)', '--'), 'reduction': ('ΔR', ':')}


def measure(args, subject) -> dict:
    normalize = None if args.normalize == 'none' else args.normalize
    ceiling = {}

    def numbers_of(layer):
        tensors = tensors_at(subject.backbone.blocks[layer.index], layer, args.site)
        ceiling['nats'] = coding_rate_ceiling(tensors['v'].shape[-1], args.eps2)
        return (layer_coding_rates(tensors, args.eps2, normalize, not args.full_subspace)
                | layer_rate_reduction(tensors, args.eps2, normalize is not None))

    found = collect(args, subject, numbers_of, ['v', 'membership'])
    numbers = {name: mean_and_spread(values, (1,)) for name, values in found.items()}
    return {'images': found['exact'].shape[1],
            'layers': list(analyzed_layers(subject.backbone, args.layers)),
            'ceiling': ceiling['nats'],
            'mean': {name: mean for name, (mean, _) in numbers.items()},
            'spread': {name: spread for name, (_, spread) in numbers.items()}}


def run(args) -> None:
    check_results(args, 'coding_rate', ['coding_rate'])
    models = subjects(args)
    found = {subject.label: measure(args, subject) for subject in models}
    panels = [Panel(
        [Line(label, numbers['layers'], numbers['mean'][kind], numbers['spread'][kind], color=i)
         for i, (label, numbers) in enumerate(found.items())], title, 'rate in nats',
        level=(found[models[0].label]['ceiling'], 'ceiling of unit-length tokens')
        if args.normalize == 'head' else None) for kind, title in KINDS.items()]
    panels.append(Panel(
        [Line(f'{label}: {word}', numbers['layers'], numbers['mean'][kind], style=style, color=i)
         for i, (label, numbers) in enumerate(found.items())
         for kind, (word, style) in MCR2.items()], 'MCR²: ΔR = R(Z) − R^c(Z, Π)', 'rate in nats'))
    count = found[models[0].label]['images']
    where = {'input': 'at the input of the block', 'attention': 'behind the attention',
             'block': 'behind the block'}[args.site]
    figure = line_panels(panels, 'block', f'Mean and spread over {count} images, tokens {where}')
    path = write_figure(args, models, figure, 'coding_rate')
    report(args, 'coding_rate', models, {
        'eps2': args.eps2, 'normalize': args.normalize, 'site': args.site,
        'subspace': 'S' if args.full_subspace else 'U^S', 'models': found}, [path])
