"""COCO evaluation of saved results: what tools/analysis_tools/eval_coco.py does."""

import contextlib
import io
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pycocotools.coco import COCO

import mmext.registry  # noqa: F401  (pickles are read without running code in them)
from mmext.cli.config_check import ConfigError
from mmext.cli.outputs import check_outputs
from mmext.engine.coco_evaluation import (
    BOX,
    CATEGORY,
    IMAGE,
    SCORE,
    average_precision,
    evaluate,
)

NAMES = ('AP', 'AP50', 'AP75', 'APs', 'APm', 'APl', 'AR1', 'AR10', 'AR100', 'ARs', 'ARm', 'ARl')
KEYS = {'bbox': 'bbox', 'segm': 'segmentation'}


class Detections(NamedTuple):
    """Of one file: table (N, 7) as ``evaluate`` takes it; masks N or None; whether boxes."""

    table: np.ndarray
    masks: list[dict] | None
    boxes: bool


def load_gt(path: str, classes: list[str] | None) -> tuple[COCO, list[int]]:
    """The annotation file and the ids of the wanted classes, in its order."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            gt = COCO(path)
    except (ValueError, AssertionError) as error:
        raise ConfigError(f'--gt {path} is no COCO file: {error}') from error
    strange = sorted(set(classes or ()) - {one['name'] for one in gt.cats.values()})
    if strange:
        raise ConfigError(f'--classes {", ".join(strange)}: no such class in {path}')
    return gt, gt.getCatIds(catNms=classes or [])


def load_results(path: str, category_ids: list[int]) -> Detections:
    """Detections of a file; ConfigError where it does not hold any format known."""
    if path.endswith('.pkl'):
        from mmengine.fileio import load

        return from_pickle(path, load(path), category_ids)
    try:
        results = json.loads(Path(path).read_text(encoding='utf-8'))
    except ValueError as error:
        raise ConfigError(f'{path} is no JSON: {error}') from error
    if not isinstance(results, list) or not all(
            isinstance(one, dict) and {'image_id', 'category_id', 'score'} <= set(one)
            for one in results):
        raise ConfigError(f'{path} is no list of COCO results (image_id, category_id, score '
                         'and bbox or segmentation)')
    boxes, masks = ([key in one for one in results] for key in KEYS.values())
    if results and not all(boxes) and not all(masks):
        raise ConfigError(f'{path}: {len(results) - max(sum(boxes), sum(masks))} of '
                         f'{len(results)} results hold neither bbox nor segmentation; keypoints '
                         'are not evaluated')
    table = np.zeros((len(results), 7))
    for column, key in ((IMAGE, 'image_id'), (SCORE, 'score'), (CATEGORY, 'category_id')):
        table[:, column] = [one[key] for one in results]
    if all(boxes):
        table[:, BOX] = np.reshape([one['bbox'] for one in results], (-1, 4))
    return Detections(
        table, [one['segmentation'] for one in results] if all(masks) else None, all(boxes))


def from_pickle(path: str, predictions: list[dict], category_ids: list[int]) -> Detections:
    """Detections of ``tools/test.py --out``; label i is the i-th wanted category of the file."""
    if not (isinstance(predictions, list) and all(
            isinstance(one, dict) and {'img_id', 'pred_instances'} <= set(one)
            for one in predictions)):
        raise ConfigError(f'{path} is no pickle of tools/test.py --out')
    found = [one['pred_instances'] for one in predictions]
    labels = np.concatenate([np.asarray(one['labels'], dtype=int) for one in found])
    if labels.size and labels.max() >= len(category_ids):
        raise ConfigError(f'{path} holds label {labels.max()}, but there are only '
                         f'{len(category_ids)} classes; name those of the config by --classes')
    table = np.empty((len(labels), 7))
    table[:, IMAGE] = np.repeat([one['img_id'] for one in predictions],
                                [len(one['labels']) for one in found])
    boxes = np.concatenate([np.asarray(one['bboxes'], dtype=float).reshape(-1, 4) for one in found])
    boxes[:, 2:] -= boxes[:, :2]
    table[:, BOX] = boxes
    table[:, SCORE] = np.concatenate([np.asarray(one['scores'], dtype=float) for one in found])
    table[:, CATEGORY] = np.asarray(category_ids)[labels]
    with_masks = all('masks' in one for one in found)
    return Detections(
        table, [mask for one in found for mask in one['masks']] if with_masks else None, True)


def check(table: np.ndarray, gt: COCO) -> None:
    """ConfigError for images or classes that the annotation file lacks."""
    for column, known, key, text in ((IMAGE, gt.imgs, 'image_id', 'images'),
                                     (CATEGORY, gt.cats, 'category_id', 'classes')):
        strange = np.setdiff1d(table[:, column], list(known))
        if strange.size:
            raise ConfigError(f'results for {strange.size} {text} that the annotation file '
                             f'lacks, e.g. {key} {strange[0]:.0f}; is it the right --gt?')


def choose(files: list[Detections], iou_type: str) -> list[Detections]:
    """The files that speak of boxes, or of masks.

    mmdet's `results.segm.json` repeats the boxes of `results.bbox.json`: beside a file with boxes
    alone, those of a file with masks do not count.
    """
    if iou_type == 'segm':
        return [one for one in files if one.masks is not None]
    boxes = [one for one in files if one.boxes]
    return [one for one in boxes if one.masks is None] or boxes


def run(args) -> None:
    """Read, evaluate, print, write; ``args`` of eval_coco.py."""
    check_outputs([args.json], args.overwrite, [args.gt, *args.results])
    gt, category_ids = load_gt(args.gt, args.classes)
    files = [load_results(path, category_ids) for path in args.results]
    for one in files:
        check(one.table, gt)
    full = [one for one in files if len(one.table)]  # what an empty list is about, nobody knows
    report = {'gt': args.gt, 'results': args.results,
              'detections': sum(len(one.table) for one in full)}
    kinds = [iou_type for iou_type in KEYS if choose(full, iou_type)]
    for iou_type in args.iou_types or kinds or ['bbox']:
        if full and iou_type not in kinds:
            raise ConfigError(f'--iou-types {iou_type}: no result holds '
                             f'{KEYS[iou_type]}, only {", ".join(KEYS[kind] for kind in kinds)}')
        chosen = choose(full, iou_type)
        table = np.concatenate([np.empty((0, 7)), *(one.table for one in chosen)])
        masks = [mask for one in chosen for mask in one.masks] if iou_type == 'segm' else None
        evaluated = evaluate(gt, table, masks, cat_ids=category_ids, backend=args.backend)
        with contextlib.redirect_stdout(io.StringIO()):
            evaluated.summarize()
        report[iou_type] = dict(zip(NAMES, map(float, evaluated.stats), strict=True))
        print(f'{iou_type}: ' + '  '.join(
            f'{name} {value:.3f}' for name, value in report[iou_type].items()))
        if args.classwise:
            aps = {gt.cats[one]['name']: average_precision(evaluated, i)
                   for i, one in enumerate(evaluated.params.catIds)}
            # -1, as of pycocotools, for a class without objects: JSON has no nan
            aps = {name: -1. if np.isnan(ap) else ap for name, ap in aps.items()}
            report[f'{iou_type}_classwise'] = aps
            for name, value in aps.items():
                print(f'  {name:20} {value:.3f}')
    if args.json:
        with open(args.json, 'w', encoding='utf-8') as file:
            json.dump(report, file, indent=1)
