"""Attention maps, N x N, at early, middle and late layers (Fig. 3, 10-13 of the bias paper).

One figure an image: a row for every model and head, a column for every layer. Vertical stripes are
columns that every query attends to. The color scale of a panel ends at its 99.5th percentile.
Models run without pruning; with --pruned as their configs say.

Example:
    python tools/analysis_tools/attention_maps.py CONFIG CKPT --images photos --heads 0 4 --json
"""

from mmext.cli.arguments import analysis_parser
from mmext.cli.clear_errors import one_clear_error


def main(argv=None):
    command = analysis_parser(__doc__, num_images=2, compare=True)
    command.add_argument('--pruned', action='store_true', help='keep the pruning of the configs')
    args = command.parse_args(argv)
    # after parsing, so that --help and typing errors answer at once
    from mmext.cli.figures.attention_maps import run
    run(args)


if __name__ == '__main__':
    with one_clear_error():
        main()
