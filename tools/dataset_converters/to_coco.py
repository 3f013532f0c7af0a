"""LabelMe or YOLO folders to a COCO file for mmdet: boxes, and masks where there are polygons.

    python tools/dataset_converters/to_coco.py labelme IMAGES out.json
    python tools/dataset_converters/to_coco.py yolo IMAGES out.json --labels LABELS --data data.yaml

LabelMe: one JSON file beside each image (or in --labels); polygons and rectangles are read, shapes
of one label and group_id are one object. YOLO: one text file of boxes or polygons for each image
and the names of data.yaml; an image without a file has no objects.

The formats are read by `supervision` (pip install 'mmext[convert]'). Masks are written as
run-length codes of the image's size, so that holes and parts of an object stay together.
"""

import argparse
import sys
from pathlib import Path

from mmext.cli.arguments import add_overwrite
from mmext.cli.clear_errors import one_clear_error
from mmext.cli.outputs import check_outputs


def parse_args(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('format', choices=['labelme', 'yolo'])
    parser.add_argument('images', type=Path, help='folder of the images, with sub-folders')
    parser.add_argument('out', type=Path, help='annotation file to write')
    parser.add_argument('--labels', type=Path, help='folder of the labels; default: the images')
    parser.add_argument('--data', type=Path, help='YOLO: data.yaml with the names of the classes')
    parser.add_argument('--boxes', action='store_true', help='write boxes only')
    add_overwrite(parser)
    args = parser.parse_args(argv)
    args.labels = args.labels or args.images
    if (args.format == 'yolo') != bool(args.data):
        parser.error('--data FILE is needed for YOLO, and only there')
    for folder in (args.images, args.labels):
        if not folder.is_dir():
            parser.error(f'{folder} is no folder')
    return args


def main(argv=None):
    args = parse_args(argv)
    check_outputs([args.out], args.overwrite, [args.data])
    # after parsing, so that --help and typing errors answer at once
    from mmext.cli.to_coco import run
    return run(args)


if __name__ == '__main__':
    with one_clear_error():
        sys.exit(main())
