"""Evaluate a saved results file against COCO annotations, without the model.

    python tools/analysis_tools/eval_coco.py --gt data/coco/annotations/instances_val2017.json \\
        --results work_dirs/x/results.bbox.json work_dirs/x/results.segm.json --json ap.json

Results are COCO's JSON lists (`test_evaluator.format_only=True` with `outfile_prefix` writes them)
or the pickle of `tools/test.py --out`. Numbers are those of pycocotools with its 100 detections a
image; for masks the size of an object is that of its mask.
"""

import argparse
from pathlib import Path

from mmext.cli.arguments import add_overwrite
from mmext.cli.clear_errors import one_clear_error


def parse_args(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--gt', required=True, help='annotation file')
    parser.add_argument(
        '--results', required=True, nargs='+', help='result files (.json or .pkl)')
    parser.add_argument(
        '--iou-types', nargs='+', choices=['bbox', 'segm'],
        help='what to evaluate (default: what the results hold)')
    parser.add_argument('--classwise', action='store_true', help='AP of every class, too')
    parser.add_argument(
        '--classes', nargs='+', metavar='NAME',
        help="the config's class names, where they are fewer than the file has: only these are "
        'evaluated, and labels of a pickle count them in the order of the file, as in CocoMetric')
    parser.add_argument('--backend', choices=['hotcoco', 'pycocotools'], default='hotcoco')
    parser.add_argument('--json', metavar='OUT', help='write the numbers to this file')
    add_overwrite(parser)
    args = parser.parse_args(argv)
    for path in (args.gt, *args.results):
        if not Path(path).is_file():
            raise SystemExit(f'error: {path} does not exist')
    return args


def main(argv=None):
    args = parse_args(argv)
    # after parsing, so that --help and typing errors answer at once
    from mmext.cli.eval_coco import run
    run(args)


if __name__ == '__main__':
    with one_clear_error():
        main()
