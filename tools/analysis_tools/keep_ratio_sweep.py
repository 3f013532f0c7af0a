"""What a checkpoint loses and saves at other keep ratios, and the best schedule; no training.

Every setting is evaluated on the config's test (else validation) data: accuracy or AP. Without
any, or with --fidelity, the similarity of its features to those of the dense model on --images is
used instead. GFLOPs (keys and values gathered after their projection, as the paper counts) and
latency are those of the backbone for the first image. Token merging and the dense model are shown
beside.

--budget-gflops asks for the schedule over the layers that keeps the most attention mass within that
budget of the backbone (default: what keeping 0.9 to 0.1 costs). It is measured on the images, which
need no labels, in a dense run, evaluated with the others and written as a config.

Example:
    python tools/analysis_tools/keep_ratio_sweep.py CONFIG CKPT --keep-ratio none 0.7 0.5 0.9,0.1 \\
        --tome 8 13 --budget-gflops 8.8 --images photos
"""

from mmext.cli.arguments import RATIO_HELP, add_keep_ratio, analysis_parser, positive
from mmext.cli.clear_errors import one_clear_error


def main(argv=None):
    command = analysis_parser(__doc__, num_images=8, heads=False)
    add_keep_ratio(command, several=True, help=RATIO_HELP, default=[
        .9, .7, .5, .3, (.9, .7), (.9, .5), (.9, .3), (.9, .1)])
    command.add_argument('--tome', type=int, nargs='*', default=[4, 8, 13], metavar='r',
                         help='token merging beside it: tokens merged per block at 196 patches')
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
