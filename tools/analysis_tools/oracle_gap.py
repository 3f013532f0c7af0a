"""What one set of columns for all queries loses against a set for each query (Fig. 8).

With k = floor(r N): the global set are the k columns that receive the most attention, the oracle
takes every query's own k largest weights. Retained mass of both, and their gap over depth, averaged
over heads and images; models run without pruning. A model with key bias also shows the mass on the
bias's own top-k, which is what bias-pruned attention keeps.

Example:
    python tools/analysis_tools/oracle_gap.py CONFIG CKPT --images photos --json
"""

from mmext.cli.arguments import add_keep_ratio, analysis_parser, one_ratio
from mmext.cli.clear_errors import one_clear_error


def main(argv=None):
    command = analysis_parser(__doc__, num_images=50, compare=True)
    add_keep_ratio(command, several=True, type=one_ratio, default=[.9, .5, .1],
                   help='r, shares of the columns (default: 0.9 0.5 0.1)')
    args = command.parse_args(argv)
    # after parsing, so that --help and typing errors answer at once
    from mmext.cli.figures.oracle_gap import run
    run(args)


if __name__ == '__main__':
    with one_clear_error():
        main()
