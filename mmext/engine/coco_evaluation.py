"""COCO's average precision of boxes and masks, by hotcoco or by pycocotools.

``evaluate`` returns pycocotools' own ``COCOeval`` in either case: hotcoco (MIT, Rust,
https://github.com/derekallman/hotcoco) fills the arrays of precision and recall, pycocotools'
``summarize`` makes the twelve numbers and prints the table. Both backends give the same arrays to
the last bit wherever ``why_not_hotcoco`` finds nothing; there pycocotools computes. That function
lists what was found to differ, or was not compared, of hotcoco 1.3.0 and pycocotools 2.0.11.
"""

import contextlib
import importlib.util
import io
import warnings
from collections.abc import Sequence

import numpy as np
import pycocotools.mask
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

BACKENDS = ('hotcoco', 'pycocotools')
IMAGE, BOX, SCORE, CATEGORY = 0, slice(1, 5), 5, 6  # columns of a table of detections
CONFIDENT = .3  # score from which a detection counts in the matrix of confusions


def evaluate(gt: COCO, table: np.ndarray, masks: Sequence[dict] | None = None, *,
             cat_ids: Sequence[int] | None = None, img_ids: Sequence[int] | None = None,
             max_dets: Sequence[int] = (1, 10, 100), iou_thrs: Sequence[float] | None = None,
             use_cats: bool = True, backend: str = 'hotcoco') -> COCOeval:
    """Match detections with the ground truth and sum up, as pycocotools does.

    Args:
        gt: the annotation file.
        table: detections (N, 7): image id, x, y, width and height in pixels, score, category id.
        masks: N masks as RLE ``{'size': [h, w], 'counts': ...}``: then masks are compared, and the
            size of a detection is that of its mask.
        cat_ids, img_ids: what is evaluated (default: all of the file).
        max_dets: detections an image and class that count, by falling score.
        iou_thrs: overlaps that make a match (default: .5, .55, ... .95).
        use_cats: False for proposals, which have no class.
        backend: 'hotcoco' or 'pycocotools'.

    Returns:
        pycocotools' evaluator with ``stats`` (12,) and ``eval`` (``precision``
        (T, R, K, A, M) and ``recall`` (T, K, A, M) over thresholds, recalls, classes by rising
        id, areas, max_dets), and ``confusion`` (K + 1, K + 1), counts of objects by class that is
        there and class of the detection scored ``CONFIDENT`` or more that overlaps by .5, the last
        being nothing; None by pycocotools, which does not count this.

    Raises:
        ValueError: Detections of images that the file lacks; an unknown backend.
    """
    if backend not in BACKENDS:
        raise ValueError(f'backend {backend!r} is none of {", ".join(BACKENDS)}')
    strange = np.setdiff1d(table[:, IMAGE], list(gt.imgs))
    if strange.size:
        raise ValueError(f'detections of {strange.size} images that the annotation file lacks, '
                         f'e.g. image_id {strange[0]:.0f}')
    run = COCOeval(iouType='bbox' if masks is None else 'segm')
    run.confusion = None
    params = run.params
    params.catIds = sorted(set(gt.getCatIds() if cat_ids is None else cat_ids))
    params.imgIds = sorted(set(gt.getImgIds() if img_ids is None else img_ids))
    params.maxDets = sorted(max_dets)
    params.useCats = int(use_cats)
    if iou_thrs is not None:
        params.iouThrs = np.asarray(iou_thrs)
    reason = why_not_hotcoco(gt, table, use_cats) if backend == 'hotcoco' else None
    if reason is not None:
        warnings.warn(f'evaluated by pycocotools, which is slow: {reason}', stacklevel=2)
    if backend == 'hotcoco' and reason is None:
        _by_hotcoco(run, gt, table, masks)
    else:
        _by_pycocotools(run, gt, table, masks)
    return run


def why_not_hotcoco(gt: COCO, table: np.ndarray, use_cats: bool = True) -> str | None:
    """What keeps hotcoco from giving pycocotools' numbers, or None."""
    if importlib.util.find_spec('hotcoco') is None:
        return 'hotcoco is not installed (pip install hotcoco)'
    if not use_cats:
        return 'among proposals of equal score hotcoco takes another order'
    anns = gt.dataset.get('annotations', [])
    ids = {ann['id'] for ann in anns}
    if len(ids) < len(anns) or not all(isinstance(i, int) and i > 0 for i in ids):
        return 'annotation ids must be whole numbers from 1 on, each once'
    if not all(isinstance(i, int) and 0 <= i < 2**53 for i in (*gt.imgs, *gt.cats)):
        return 'ids of images and categories must be whole numbers from 0 to 2**53'
    if not all('area' in ann and 'iscrowd' in ann for ann in anns):
        return 'annotations without area or iscrowd'
    if not np.isfinite(table).all():
        return 'boxes or scores that are not finite'
    return None


def encode(masks: np.ndarray) -> list[dict]:
    """Boolean masks (N, H, W) as N RLE."""
    if importlib.util.find_spec('hotcoco') is None:
        return [pycocotools.mask.encode(np.asfortranarray(mask)) for mask in masks.view(np.uint8)]
    import hotcoco
    return [hotcoco.mask.encode(mask) for mask in masks.view(np.uint8)]


def _by_hotcoco(run: COCOeval, gt: COCO, table: np.ndarray, masks: Sequence[dict] | None) -> None:
    import hotcoco

    truth = hotcoco.COCO(gt.dataset)
    found = truth.load_res(table, segmentation=masks)
    if masks:
        # without boxes hotcoco would do this by itself, in a list of dicts four times as large
        found.update_anns(ids=np.arange(1, len(table) + 1), area=hotcoco.mask.area(masks))
    fast = hotcoco.COCOeval(truth, found, run.params.iouType)
    for name in ('catIds', 'imgIds', 'maxDets', 'iouThrs'):
        setattr(fast.params, name, list(getattr(run.params, name)))
    fast.evaluate()
    fast.accumulate()
    run.eval = {name: fast.eval[name] for name in ('counts', 'precision', 'recall', 'scores')}
    run.confusion = np.asarray(
        fast.confusion_matrix(iou_thr=.5, min_score=CONFIDENT)['matrix'], dtype=np.int64)


def _by_pycocotools(run: COCOeval, gt: COCO, table: np.ndarray,
                    masks: Sequence[dict] | None) -> None:
    run.cocoGt = gt
    with contextlib.redirect_stdout(io.StringIO()):
        run.cocoDt = gt.loadRes(as_dicts(table, masks)) if len(table) else _nothing(gt)
        run.evaluate()
        run.accumulate()
    run.cocoGt = run.cocoDt = None
    run._gts = run._dts = run.ious = run.evalImgs = None  # gigabytes for 5,000 images


def as_dicts(table: np.ndarray, masks: Sequence[dict] | None = None) -> list[dict]:
    """Detections in COCO's format, with boxes or, where given, masks alone.

    With a box beside it, pycocotools takes the size of the box for that of the mask.
    """
    return [
        dict(image_id=int(row[IMAGE]), category_id=int(row[CATEGORY]), score=row[SCORE],
             **(dict(bbox=row[BOX]) if masks is None else dict(segmentation=masks[i])))
        for i, row in enumerate(table.tolist())]


def _nothing(gt: COCO) -> COCO:
    """Results without any detection, which ``loadRes`` cannot take."""
    found = COCO()
    found.dataset = {**gt.dataset, 'annotations': []}
    found.createIndex()
    return found


def average_precision(run: COCOeval, category: int, area: int = 0,
                      threshold: float | None = None) -> float:
    """AP of the ``category``-th evaluated class by rising id, nan without objects of it.

    Args:
        area: 0 all, 1 small, 2 medium, 3 large.
        threshold: at this overlap alone; nan where it was not evaluated.
    """
    precision = run.eval['precision'][:, :, category, area, -1]
    if threshold is not None:
        precision = precision[np.isclose(run.params.iouThrs, threshold)]
    precision = precision[precision > -1]
    return float(precision.mean()) if precision.size else float('nan')
