"""The logits taken apart: scaled q k^T, key bias, their sum (Fig. 4, 14-17 of the bias paper).

Two figures an image: the three matrices of every layer, and over the image the columns that the
key bias keeps, one panel per layer and head. The model prunes as its config says; --keep-ratio
says otherwise.

Example:
    python tools/analysis_tools/bias_decomposition.py CONFIG CKPT --images photos \\
        --keep-ratio 0.9,0.1
"""

from mmext.cli.arguments import add_keep_ratio, analysis_parser
from mmext.cli.clear_errors import one_clear_error


def main(argv=None):
    command = analysis_parser(__doc__, num_images=1)
    add_keep_ratio(command)
    command.add_argument('--scale', choices=['row', 'panel'], default='row',
                         help='one color scale for the three matrices, or one for each')
    args = command.parse_args(argv)
    # after parsing, so that --help and typing errors answer at once
    from mmext.cli.figures.bias_decomposition import run
    run(args)


if __name__ == '__main__':
    with one_clear_error():
        main()
