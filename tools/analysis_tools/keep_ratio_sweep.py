"""What a checkpoint loses and saves at other keep ratios, and the best schedule; no training.

Every setting is evaluated on the config's test (else validation) data: accuracy or AP. Without
any, or with --fidelity, the similarity of its features to those of the dense model on --images is
used instead. GFLOPs (keys and values gathered after their projection, as the paper counts; at
another resolution with --flop-shape) and latency are those of the backbone for the first image.
Beside the keep ratios stand the dense model, what the config itself prunes, token merging, and
token merging with pruning; with each its pruning ratio, averaged over data, heads and layers. A
plain model (key_bias=False) has token merging alone.

--compare puts further models on the same figure and table: the plain network for token merging
without a key bias, or checkpoints of other trainings for the matrix of training and testing.

--pruning-ratio asks for the threshold tau on softmax(b) that drops such a share on the images.

--budget-gflops asks for the schedule over the layers that keeps the most attention mass within that
budget of the backbone (default: what keeping 0.9 to 0.1 costs). It is measured on the images, which
need no labels, in a dense run, evaluated with the others and written as a config.

Example:
    python tools/analysis_tools/keep_ratio_sweep.py CONFIG CKPT --keep-ratio none 0.7 0.5 0.9,0.1 \\
        --tome 8 13 --budget-gflops 8.8 --images photos
    # token merging on the plain network, with pruning, pruning alone; accuracy at 224, cost at 1024
    python tools/analysis_tools/keep_ratio_sweep.py CONFIG CKPT --compare PLAIN.py=OFFICIAL.pth \\
        --flop-shape 1024 --no-search
"""

from mmext.cli.arguments import (
    RATIO_HELP,
    Shape,
    add_keep_ratio,
    analysis_parser,
    keep_ratio,
    one_ratio,
    positive,
)
from mmext.cli.clear_errors import one_clear_error


def main(argv=None):
    command = analysis_parser(__doc__, num_images=8, compare=True, heads=False)
    add_keep_ratio(command, several=True, help=RATIO_HELP, default=[
        .9, .7, .5, .3, (.9, .7), (.9, .5), (.9, .3), (.9, .1)])
    command.add_argument('--tome', type=int, nargs='*', default=[4, 8, 13], metavar='r',
                         help='token merging beside it: tokens merged per block at 196 patches')
    command.add_argument('--tome-keep-ratio', type=keep_ratio, default=(.9, .1), metavar='R',
                         help='token merging with this pruning; none leaves it out '
                         '(default: 0.9,0.1)')
    command.add_argument('--tau', type=float, nargs='+', default=[], metavar='T',
                         help='probability thresholds to compare, in (0, 1]')
    command.add_argument('--pruning-ratio', type=one_ratio, nargs='+', default=[], metavar='P',
                         help='find the threshold that drops this share of the columns')
    command.add_argument('--flop-shape', type=int, nargs='+', action=Shape, metavar=('H', 'W'),
                         help='count GFLOPs at this size (default: that of the images)')
    command.add_argument('--no-search', action='store_true', help='no search for a schedule')
    command.add_argument('--budget-gflops', type=float, nargs='+', default=[], metavar='G')
    command.add_argument('--metric', help='of the evaluator (default: top-1 accuracy or box AP)')
    command.add_argument('--fidelity', action='store_true', help='compare features, use no labels')
    command.add_argument('--repeat', type=positive, default=10, help='timed runs of each setting')
    args = command.parse_args(argv)
    # after parsing, so that --help and typing errors answer at once
    from mmext.cli.figures.keep_ratio_sweep import run
    run(args)


if __name__ == '__main__':
    with one_clear_error():
        main()
