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
    # detectors on the images of a COCO folder, each padded as the config tests, against the first
    python tools/analysis_tools/benchmark.py images --data-root data/coco --number 12 --config \\
        configs/vitdet/mask-rcnn_deit-s_sfp_lsj-100e_coco.py \\
        configs/vitdet/mask-rcnn_deit-s-bias-0.9-0.1-masked_sfp_lsj-100e_coco.py
    # a training step by part: dense, pruned by masking and by gathering
    python tools/analysis_tools/benchmark.py training --data-root data/coco --config \\
        configs/vitdet/mask-rcnn_deit-s-bias-0.9-0.1_sfp_lsj-100e_coco.py
    # what got slower since OLD.json: measured now, or read from NEW.json
    python tools/analysis_tools/benchmark.py layer --against OLD.json
    python tools/analysis_tools/benchmark.py compare --json NEW.json --against OLD.json

With --against the exit status is 3 where a time is above the old one beyond both spreads (10th to
90th percentile), or a peak of memory by more than 2 %; 0 where not, 1 on errors.
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
                                          'detector', 'images', 'training', 'compare'])
    parser.add_argument('--tokens', type=positive, nargs='+', default=[1024, 4096],
                        help='N of operators and layers')
    add_shape(parser, (1024, 1024), 'image of backbones and detectors')
    parser.add_argument('--batch-size', type=positive, nargs='+', default=[1])
    parser.add_argument('--dim', type=positive, default=384)
    parser.add_argument('--heads', type=positive, default=6)
    parser.add_argument('--arch', choices=ARCHS, default='deit-small')
    parser.add_argument('--config', nargs='+', help='config of the classifier or detector; for '
                        'images the first of several is the baseline')
    parser.add_argument('--checkpoint', help='weights of the classifier or detector')
    parser.add_argument('--data-root', metavar='DIR', help="for images and training, instead of "
                        "the config's folder of data")
    parser.add_argument('--number', type=positive, help='of images, spread over their shapes '
                        '(default: 12, for training 3)')
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
    parser.add_argument('--warmup', type=int, help='(default: 3; images and training 1)')
    parser.add_argument('--repeat', type=positive, help='(default: 10; images and training 3, '
                        'of all images)')
    parser.add_argument('--no-memory', action='store_true')
    parser.add_argument('--threads', type=positive, help='CPU threads')
    add_device(parser)
    parser.add_argument('--json', metavar='OUT')
    parser.add_argument('--against', metavar='OLD.json', help='say what got slower since')
    parser.add_argument('--plot', metavar='PNG', help='of operators and layers over --tokens')
    add_overwrite(parser)
    args = parser.parse_args(argv)
    on_data = args.level in ('images', 'training')
    usual = ((['math', 'efficient'], 50, 200) if args.paper else
             (['fused'], 1, 3) if on_data else (['fused'], 3, 10))
    args.number = args.number or {'images': 12, 'training': 3}.get(args.level)
    for name, value in zip(('backend', 'warmup', 'repeat'), usual, strict=True):
        if getattr(args, name) is None:
            setattr(args, name, value)
    whole = args.level not in ('operator', 'layer')
    if args.keep_ratio is None:
        args.keep_ratio = [(0.9, 0.1)] if whole else [0.5, 0.3, 0.1]
    if None in args.keep_ratio:
        parser.error('--keep-ratio none: the dense form is on every table anyway')
    if not whole and any(not isinstance(keep, float) for keep in args.keep_ratio):
        parser.error('--keep-ratio: a schedule such as 0.9,0.1 needs several layers; give ratios '
                     f'to {args.level}')
    if whole and args.plot:
        parser.error('--plot draws over --tokens, which only operators and layers have')
    if args.level == 'compare' and not (args.json and args.against):
        parser.error('compare needs two files: --json NEW.json --against OLD.json')
    if args.level in ('classifier', 'detector', 'images', 'training') and not args.config:
        parser.error(f'{args.level} needs --config')
    if args.config and len(args.config) > 1 and args.level != 'images':
        parser.error(f'{args.level} takes one --config')
    if args.image and args.level not in ('classifier', 'detector'):
        parser.error('--image is for classifiers and detectors')
    if args.checkpoint and not args.config:
        parser.error('--checkpoint needs --config')
    if args.only and args.level == 'images':
        parser.error('--only: for images, name the configs to compare')
    if (args.data_root or args.number) and not on_data:
        parser.error('--data-root and --number are for images and training')
    if args.config and (args.train or args.compile):
        parser.error(f'{args.level} is measured eager, without --train')
    if on_data and (args.dtype != ['fp32'] or args.batch_size != [1] or args.image):
        parser.error(f'{args.level} is measured in fp32 on one image a time')
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


def main(argv=None) -> int:
    args = parse_args(argv)
    if args.level != 'compare':
        check_outputs([args.json, args.plot], args.overwrite,
                      [*(args.config or ()), args.checkpoint, args.image, args.against])
    # after parsing, so that --help and typing errors answer at once
    from mmext.cli.benchmark_compare import read, report
    old = read(args.against) if args.against else None  # a wrong file shows before measuring
    if args.level == 'compare':
        new = read(args.json)
    else:
        from mmext.cli.benchmark import run
        new = run(args)
    return 3 * (old is not None and report(old, new))


if __name__ == '__main__':
    with one_clear_error():
        raise SystemExit(main())
