"""Coding rate of every layer of a token-statistics backbone (Fig. 5 of the DMST paper).

Variational rate R_c^var(Z | pi_k, U_k^S) and the exact log-determinant rate with the same
memberships, per image, then mean and spread over the images; several models in one figure. The
defaults (tokens normalized per head, eps^2 = 0.01) are those of ToST's published curve: the ceiling
is 0.5 P ln(101), 110.76 nats for P = 48.

Site 'input' projects the tokens that enter the attention layer, 'output' the tokens that leave the
block, with the same projection and the memberships and gates of the input.

Example:
    python tools/analysis_tools/coding_rate.py DMST.py a.pth --compare TOST.py=b.pth
"""

from mmext.analysis.drawing import Line, Panel, line_panels
from mmext.analysis.intermediates import analyzed_layers
from mmext.analysis.membership import layer_coding_rates
from mmext.cli.analysis import collect, mean_and_spread, parser, report, subjects, write_figure
from mmext.cli.launch import one_clear_error
from mmext.ops.coding_rate import coding_rate_ceiling

KINDS = {'variational': 'Variational coding rate', 'exact': 'Exact coding rate (log det)'}


def output_projection(subject, layer):
    """v (B, H, N, P) of the tokens that leave the block, by the block's own norm and projection."""
    block = subject.backbone.blocks[layer.index]
    tokens = block.norm1(layer.tensors['x_out'])
    return block.attn.forward_intermediates(tokens, layer.hw)[1]['v']


def measure(args, subject) -> dict:
    normalize = None if args.normalize == 'none' else args.normalize
    ceiling = {}

    def numbers_of(layer):
        tensors = dict(layer.tensors)
        if args.site == 'output':
            tensors['v'] = output_projection(subject, layer)
        ceiling['nats'] = coding_rate_ceiling(tensors['v'].shape[-1], args.eps2)
        return layer_coding_rates(tensors, args.eps2, normalize, not args.full_subspace)

    found = collect(args, subject, numbers_of, ['v', 'membership'])
    numbers = {name: mean_and_spread(values, (1,)) for name, values in found.items()}
    return {'images': found['exact'].shape[1],
            'layers': list(analyzed_layers(subject.backbone, args.layers)),
            'ceiling': ceiling['nats'],
            'mean': {name: mean for name, (mean, _) in numbers.items()},
            'spread': {name: spread for name, (_, spread) in numbers.items()}}


def main(argv=None):
    command = parser(__doc__, num_images=1000, compare=True, heads=False)
    command.add_argument('--eps2', type=float, default=0.01, help='squared distortion')
    command.add_argument('--normalize', choices=['head', 'token', 'none'], default='head',
                         help='tokens to unit length per head, over all heads, or not')
    command.add_argument('--site', choices=['input', 'output'], default='input')
    command.add_argument('--full-subspace', action='store_true',
                         help='leave the gate out: rates within S instead of U^S')
    args = command.parse_args(argv)
    models = subjects(args)
    found = {subject.label: measure(args, subject) for subject in models}
    panels = [Panel(
        [Line(label, numbers['layers'], numbers['mean'][kind], numbers['spread'][kind], color=i)
         for i, (label, numbers) in enumerate(found.items())], title, 'rate in nats',
        level=(found[models[0].label]['ceiling'], 'ceiling of unit-length tokens')
        if args.normalize == 'head' else None) for kind, title in KINDS.items()]
    count = found[models[0].label]['images']
    figure = line_panels(panels, 'block', f'Mean and spread over {count} images')
    path = write_figure(args, models, figure, 'coding_rate')
    report(args, 'coding_rate', models, {
        'eps2': args.eps2, 'normalize': args.normalize, 'site': args.site,
        'subspace': 'S' if args.full_subspace else 'U^S', 'models': found}, [path])


if __name__ == '__main__':
    with one_clear_error():
        main()
