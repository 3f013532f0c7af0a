"""Check a COCO annotation file before training: classes, counts, images, masks.

    python tools/dataset_converters/check_coco.py ANN_FILE --image-dir DIR --classes cat dog
    python tools/dataset_converters/check_coco.py PANOPTIC_FILE --seg-dir DIR_OF_PNGS
    python tools/dataset_converters/check_coco.py --config CONFIG

A config may also have LVIS, panoptic and semantic data; every label image is read. Exit status 1
when something is wrong.
"""

import argparse
import json
import sys

from mmext.cli.arguments import add_cfg_options, add_overwrite
from mmext.cli.clear_errors import one_clear_error
from mmext.cli.outputs import check_outputs


def parse_args(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('ann_file', nargs='?', help='annotation file in COCO format')
    parser.add_argument('--image-dir', help='folder of the images; default: do not look')
    parser.add_argument(
        '--seg-dir', help='folder of the PNGs of a panoptic file; makes ANN_FILE one')
    parser.add_argument('--classes', nargs='+', help='class names in the order of the config')
    parser.add_argument('--masks', action='store_true', help='instance masks are needed')
    parser.add_argument('--config', help='check the train, val and test data of this config')
    add_cfg_options(parser)
    parser.add_argument('--json', metavar='OUT', help='write the reports to this file')
    add_overwrite(parser)
    args = parser.parse_args(argv)
    if bool(args.ann_file) == bool(args.config):
        parser.error('give either an annotation file or --config')
    return args


def main(argv=None):
    args = parse_args(argv)
    check_outputs([args.json], args.overwrite, [args.ann_file, args.config])
    # after parsing, so that --help and typing errors answer at once
    from mmext.cli.annotation_check import check_coco_file, check_dataset_cfg
    from mmext.cli.panoptic_check import check_panoptic_file, check_segmentation_cfg
    try:
        if args.config:
            from mmext.cli.config_check import check_data_paths, splits_of
            from mmext.cli.launch import load_config

            cfg = load_config(args.config, args.cfg_options, None, 'none')
            splits = splits_of(cfg, 'train', 'val', 'test')
            check_data_paths(cfg, splits)
            reports = check_dataset_cfg(cfg, splits) + check_segmentation_cfg(cfg, splits, None)
        elif args.seg_dir:
            reports = [
                check_panoptic_file(args.ann_file, args.seg_dir, args.image_dir, args.classes)]
        else:
            reports = [
                check_coco_file(args.ann_file, args.classes, args.image_dir, args.masks or None,
                                train=True, evaluated=True, headers=None)]
    except ValueError as error:  # of the file, of the config
        sys.exit(f'error: {error}')
    for report in reports:
        print_report(report)
    if args.json:
        lists = ('image_ids', 'category_ids')
        with open(args.json, 'w', encoding='utf-8') as file:
            json.dump([{key: value for key, value in report.items() if key not in lists}
                       for report in reports], file, indent=1)
    sys.exit(any(report['errors'] for report in reports))


def print_report(report):
    counts = {key: value for key, value in report.items() if isinstance(value, int)}
    print(report['ann_file'])
    for key, value in counts.items():
        print(f'  {key.replace("_", " "):20} {value}')
    for name, count in sorted(report.get('per_class', {}).items(), key=lambda item: -item[1]):
        print(f'    {name:18} {count}')
    for kind in ('warnings', 'errors'):
        for message in report[kind]:
            print(f'{kind[:-1]}: {message}')


if __name__ == '__main__':
    with one_clear_error():
        main()
