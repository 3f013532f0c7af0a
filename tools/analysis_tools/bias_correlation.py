"""Does the key bias tell what attention does? (Fig. 5, 6, 9, 18-21 of the bias paper)

Pearson r over the columns between the bias and (a) the column mean of the scaled q k^T without
bias, (b) the attention received, bias included; per image and head, then averaged. And the overlap
of the bias's top-k columns with those that receive the most attention. The model runs without
pruning. The scatter figure shows the tokens of all images and heads, each head of each image
brought to mean 0 and deviation 1.

Example:
    python tools/analysis_tools/bias_correlation.py CONFIG CKPT --images dataset --num-images 200
"""

from mmext.cli.arguments import add_keep_ratio, analysis_parser, one_ratio
from mmext.cli.clear_errors import one_clear_error


def main(argv=None):
    command = analysis_parser(__doc__, num_images=200)
    add_keep_ratio(command, several=True, type=one_ratio, default=[.5, .1],
                   help='k / N of the overlap (default: 0.5 0.1)')
    args = command.parse_args(argv)
    # after parsing, so that --help and typing errors answer at once
    from mmext.cli.figures.bias_correlation import run
    run(args)


if __name__ == '__main__':
    with one_clear_error():
        main()
