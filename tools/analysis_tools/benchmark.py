"""Time and memory of the attention operators, layers, backbones and detectors, side by side.

Everything on one table runs in one process, in alternation, after a warm-up. The baseline is the
plain network on fused attention (PyTorch's default choice) in the same precision; the math
backend, which forms the N x N matrix and is the protocol of the bias-pruning paper, is a second
column. Ratios above 1 mean faster than the plain candidate of the same column.

Examples:
    # one attention layer over the number of tokens, with a plot of time and memory
    python tools/analysis_tools/benchmark.py layer --tokens 256 1024 4096 --keep-ratio 0.5 0.1 \\
        --backend fused math --json layer.json --plot layer.png
    # forward and backward
    python tools/analysis_tools/benchmark.py layer --tokens 1024 --train
    # DeiT-S at 1024 x 1024, dense and pruned
    python tools/analysis_tools/benchmark.py backbone --shape 1024 --keep-ratio 0.9,0.1
    # as the bias paper measures: a real image, trained weights, 50 warm-up and 200 timed passes by
    # the math and the memory-efficient backend, mean and standard deviation
    python tools/analysis_tools/benchmark.py classifier --paper --config CONFIG --checkpoint CKPT \\
        --image IMAGE
    # the detector on two fixed numbers of regions; with --image all of it, last NMS and mask
    # pasting included
    python tools/analysis_tools/benchmark.py detector --shape 1024 --keep-ratio 0.9,0.1 \\
        --config configs/vitdet/mask-rcnn_deit-s_sfp_lsj-100e_coco.py
"""

from pathlib import Path

from mmext.cli.arguments import (
    RATIO_HELP,
    add_device,
    add_keep_ratio,
    add_overwrite,
    add_shape,
    command_line,
    positive,
)
from mmext.cli.clear_errors import one_clear_error
from mmext.cli.outputs import check_outputs

ARCHS = ('deit-base', 'deit-small', 'deit-tiny', 'vit-large')


def parse_args(argv=None):
    parser = command_line(__doc__)
    parser.add_argument('level', choices=['operator', 'layer', 'backbone', 'classifier',
                                          'detector'])
    parser.add_argument('--tokens', type=positive, nargs='+', default=[1024, 4096],
                        help='N of operators and layers')
    add_shape(parser, (1024, 1024), 'image of backbones and detectors')
    parser.add_argument('--batch-size', type=positive, nargs='+', default=[1])
    parser.add_argument('--dim', type=positive, default=384)
    parser.add_argument('--heads', type=positive, default=6)
    parser.add_argument('--arch', choices=ARCHS, default='deit-small')
    parser.add_argument('--config', help='config of the classifier or detector')
    parser.add_argument('--checkpoint', help='weights of the classifier or detector')
    parser.add_argument('--image', metavar='FILE', help='a real image instead of random numbers, '
                        'for classifiers and detectors')
    parser.add_argument('--paper', action='store_true', help='as the bias paper: --backend math '
                        'efficient --warmup 50 --repeat 200, where not given otherwise')
    add_keep_ratio(parser, several=True, default=None, help=RATIO_HELP +
                   ' (default: 0.5 0.3 0.1; backbones and detectors 0.9,0.1)')
    parser.add_argument('--gather', choices=['auto', 'after', 'before'], default='auto',
                        help='gather kept columns after or before their projection')
    parser.add_argument('--only', nargs='+', metavar='NAME', help='of the names on the table')
    parser.add_argument('--dtype', nargs='+', choices=['fp32', 'bf16', 'fp16'], default=['fp32'])
    parser.add_argument('--backend', nargs='+', choices=['fused', 'math', 'efficient', 'flash'],
                        help='kernels of plain attention (default: fused, what torch chooses)')
    parser.add_argument('--math-limit', type=float, default=2.0, metavar='GIB',
                        help='leave the math backend out where one N x N matrix is larger')
    parser.add_argument('--train', action='store_true', help='forward and backward')
    parser.add_argument('--compile', action='store_true', help='torch.compile')
    parser.add_argument('--warmup', type=int, help='(default: 3)')
    parser.add_argument('--repeat', type=positive, help='(default: 10)')
    parser.add_argument('--no-memory', action='store_true')
    parser.add_argument('--threads', type=positive, help='CPU threads')
    add_device(parser)
    parser.add_argument('--json', metavar='OUT')
    parser.add_argument('--plot', metavar='PNG', help='of operators and layers over --tokens')
    add_overwrite(parser)
    args = parser.parse_args(argv)
    usual = (['math', 'efficient'], 50, 200) if args.paper else (['fused'], 3, 10)
    for name, value in zip(('backend', 'warmup', 'repeat'), usual, strict=True):
        if getattr(args, name) is None:
            setattr(args, name, value)
    whole = args.level in ('backbone', 'classifier', 'detector')
    if args.keep_ratio is None:
        args.keep_ratio = [(0.9, 0.1)] if whole else [0.5, 0.3, 0.1]
    if None in args.keep_ratio:
        parser.error('--keep-ratio none: the dense form is on every table anyway')
    if not whole and any(not isinstance(keep, float) for keep in args.keep_ratio):
        parser.error('--keep-ratio: a schedule such as 0.9,0.1 needs several layers; give ratios '
                     f'to {args.level}')
    if whole and args.plot:
        parser.error('--plot draws over --tokens, which only operators and layers have')
    if args.level in ('classifier', 'detector') and not args.config:
        parser.error(f'{args.level} needs --config')
    if (args.image or args.checkpoint) and args.level not in ('classifier', 'detector'):
        parser.error('--image and --checkpoint are for classifiers and detectors')
    if args.level in ('classifier', 'detector') and (args.train or args.compile):
        parser.error(f'{args.level} is measured in inference, eager')
    if args.level == 'operator' and args.compile:
        parser.error('operators are measured eager; --compile is for layers and backbones')
    if args.dim % args.heads:
        parser.error(f'--dim {args.dim} must be a multiple of --heads {args.heads}')
    if args.warmup < 0:
        parser.error(f'--warmup {args.warmup} must be at least 0')
    for name in ('json', 'plot'):
        if getattr(args, name) and Path(getattr(args, name)).is_dir():
            parser.error(f'--{name} {getattr(args, name)} is a folder, give a file')
    return args


def main(argv=None):
    args = parse_args(argv)
    check_outputs([args.json, args.plot], args.overwrite,
                  [args.config, args.checkpoint, args.image])
    # after parsing, so that --help and typing errors answer at once
    from mmext.cli.benchmark import run
    run(args)


if __name__ == '__main__':
    with one_clear_error():
        main()
