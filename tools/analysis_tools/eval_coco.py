"""Evaluate a saved results file against COCO annotations, without the model.

    python tools/analysis_tools/eval_coco.py --gt data/coco/annotations/instances_val2017.json \\
        --results work_dirs/x/results.bbox.json work_dirs/x/results.segm.json --json ap.json

Results are COCO's JSON lists (`test_evaluator.format_only=True` with `outfile_prefix` writes them)
or the pickle of `tools/test.py --out`. Numbers are those of pycocotools with its 100 detections a
image; for masks the size of an object is that of its mask.
"""

import argparse
import contextlib
import io
import json
from pathlib import Path

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

NAMES = ('AP', 'AP50', 'AP75', 'APs', 'APm', 'APl', 'AR1', 'AR10', 'AR100', 'ARs', 'ARm', 'ARl')
KEYS = {'bbox': 'bbox', 'segm': 'segmentation'}


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
        help='class names of the config, for a pickle of a model with fewer than the file has')
    parser.add_argument('--json', metavar='OUT', help='write the numbers to this file')
    return parser.parse_args(argv)


def load_results(path: str, gt: COCO, classes: list[str] | None) -> list[dict]:
    """Detections in COCO's format; SystemExit where the file does not hold any format known."""
    if path.endswith('.pkl'):
        from mmengine.fileio import load

        return from_pickle(load(path), gt, classes)
    with open(path, encoding='utf-8') as file:
        results = json.load(file)
    if not isinstance(results, list) or not all(
            isinstance(one, dict) and {'image_id', 'category_id', 'score'} <= set(one)
            for one in results):
        raise SystemExit(f'error: {path} is no list of COCO results (image_id, category_id, score '
                         'and bbox or segmentation)')
    return results


def from_pickle(predictions: list[dict], gt: COCO, classes: list[str] | None) -> list[dict]:
    """Detections of ``tools/test.py --out``; label i is the i-th wanted category of the file."""
    category_ids = gt.getCatIds(catNms=classes or [])
    results = []
    for prediction in predictions:
        found = prediction['pred_instances']
        boxes = np.asarray(found['bboxes'], dtype=float).reshape(-1, 4)
        boxes[:, 2:] -= boxes[:, :2]
        masks = found.get('masks')
        for i, (box, label, score) in enumerate(
                zip(boxes, found['labels'], found['scores'], strict=True)):
            one = {
                'image_id': int(prediction['img_id']),
                'category_id': category_ids[int(label)],
                'score': float(score),
                'bbox': box.tolist(),
            }
            if masks is not None:
                one['segmentation'] = masks[i]
            results.append(one)
    return results


def check(results: list[dict], gt: COCO) -> None:
    """SystemExit for images or classes that the annotation file lacks."""
    for key, known, text in (('image_id', gt.imgs, 'images'),
                             ('category_id', gt.cats, 'classes')):
        strange = sorted({one[key] for one in results} - set(known))
        if strange:
            raise SystemExit(f'error: results for {len(strange)} {text} that the annotation file '
                             f'lacks, e.g. {key} {strange[0]}; is it the right --gt?')


def evaluate(gt: COCO, results: list[dict], iou_type: str) -> COCOeval:
    """Runs COCO's evaluation on the detections that have a box or a mask, as asked for."""
    key = KEYS[iou_type]
    # with a box beside it, pycocotools takes the size of the box for that of the mask
    kept = [
        {name: value for name, value in one.items() if name != 'bbox' or iou_type == 'bbox'}
        for one in results if key in one
    ]
    if iou_type == 'bbox':
        kept = [{name: value for name, value in one.items() if name != 'segmentation'}
                for one in kept]
    if kept:
        detections = gt.loadRes(kept)
    else:  # pycocotools cannot load an empty list
        detections = COCO()
        detections.dataset = {**gt.dataset, 'annotations': []}
        detections.createIndex()
    run = COCOeval(gt, detections, iou_type)
    run.evaluate()
    run.accumulate()
    run.summarize()
    return run


def class_aps(run: COCOeval, gt: COCO) -> dict[str, float]:
    """AP per class name; -1 where the class has no object."""
    precision = run.eval['precision'][:, :, :, 0, -1]
    aps = {}
    for i, category_id in enumerate(run.params.catIds):
        values = precision[:, :, i][precision[:, :, i] > -1]
        aps[gt.cats[category_id]['name']] = float(values.mean()) if values.size else -1.0
    return aps


def main(argv=None):
    args = parse_args(argv)
    if not Path(args.gt).is_file():
        raise SystemExit(f'error: --gt {args.gt} does not exist')
    with contextlib.redirect_stdout(io.StringIO()):
        gt = COCO(args.gt)
    results = [one for path in args.results for one in load_results(path, gt, args.classes)]
    check(results, gt)
    iou_types = args.iou_types or [
        iou_type for iou_type, key in KEYS.items() if any(key in one for one in results)
    ] or ['bbox']
    report = {'gt': args.gt, 'results': args.results, 'detections': len(results)}
    for iou_type in iou_types:
        with contextlib.redirect_stdout(io.StringIO()):
            run = evaluate(gt, results, iou_type)
        report[iou_type] = dict(zip(NAMES, map(float, run.stats), strict=True))
        print(f'{iou_type}: ' + '  '.join(
            f'{name} {value:.3f}' for name, value in report[iou_type].items()))
        if args.classwise:
            report[f'{iou_type}_classwise'] = class_aps(run, gt)
            for name, value in report[f'{iou_type}_classwise'].items():
                print(f'  {name:20} {value:.3f}')
    if args.json:
        with open(args.json, 'w', encoding='utf-8') as file:
            json.dump(report, file, indent=1)


if __name__ == '__main__':
    main()
