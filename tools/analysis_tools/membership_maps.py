"""Memberships and gates as heat maps over the image (Fig. 6 of the DMST paper).

One figure an image: for every layer a row with the K membership maps Pi and a row with the K gates
G, titled with the share of the tokens in the support. Panels have their own color scale, as in the
paper; --scale row shares one.

Example:
    python tools/analysis_tools/membership_maps.py CONFIG CKPT --images photos --layers -1
"""

from mmext.cli.arguments import analysis_parser
from mmext.cli.clear_errors import one_clear_error


def main(argv=None):
    command = analysis_parser(__doc__, num_images=2)
    command.add_argument('--scale', choices=['row', 'panel'], default='panel')
    args = command.parse_args(argv)
    # after parsing, so that --help and typing errors answer at once
    from mmext.cli.figures.membership_maps import run
    run(args)


if __name__ == '__main__':
    with one_clear_error():
        main()
