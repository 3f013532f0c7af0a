"""Detection class by class: average precision, precision over recall, and confusions."""

from collections import Counter

import numpy as np
from matplotlib.figure import Figure
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from .coco_evaluation import CONFIDENT, average_precision

DRAWN = 40  # classes in the figure, those with most objects; the JSON file has all


def class_report(run: COCOeval, gt: COCO) -> dict:
    """What one evaluation says of every class, in plain numbers for JSON.

    Args:
        run: of ``evaluate``.
        gt: the annotation file.

    Returns:
        ``classes``: a dict a class by rising id, of ``name``, ``objects`` (without crowds) and
        ``mAP``, ``mAP_50``, ``mAP_75`` (None without objects). ``recall``: the 101 recalls, and
        ``precision``: at overlap .5 for each class (None without objects or threshold).
        ``confusion``: of detections scored ``CONFIDENT`` and more, rows are what is there, columns
        what was said, both ending with nothing; None where pycocotools evaluated.
    """
    images = set(run.params.imgIds)
    objects = Counter(ann['category_id'] for ann in gt.dataset.get('annotations', [])
                      if ann['image_id'] in images and not ann.get('iscrowd'))
    at_half = np.flatnonzero(np.isclose(run.params.iouThrs, .5))
    classes, precision = [], []
    for i, category in enumerate(run.params.catIds):
        numbers = {key: average_precision(run, i, 0, threshold) for key, threshold in
                   (('mAP', None), ('mAP_50', .5), ('mAP_75', .75))}
        classes.append({'name': gt.cats[category]['name'], 'objects': objects[category],
                        **{key: None if np.isnan(value) else round(value, 4)
                           for key, value in numbers.items()}})
        curve = run.eval['precision'][at_half, :, i, 0, -1]
        precision.append(np.round(curve[0], 4).tolist() if curve.size and curve.min() > -1
                         else None)
    return {'classes': classes, 'recall': np.round(run.params.recThrs, 4).tolist(),
            'precision': precision,
            'confusion': None if run.confusion is None else run.confusion.tolist()}


def draw_class_report(report: dict, metric: str) -> Figure:
    """Bars of average precision, curves of precision over recall and the confusion matrix."""
    order = sorted(range(len(report['classes'])), key=lambda i: -report['classes'][i]['objects'])
    order = order[:DRAWN]
    classes = [report['classes'][i] for i in order]
    count = len(order)
    side = min(max(4.2, .24 * count + 1.6), 11)
    figure = Figure(figsize=(6.5 + 4.5 + side + .8, side), layout='constrained')
    bars, curves, table = figure.subplots(
        1, 3, gridspec_kw={'width_ratios': [5.5, 4.5, side]})
    _draw_bars(bars, classes)
    _draw_curves(curves, report, order)
    _draw_confusion(table, report['confusion'], order, [c['name'] for c in classes])
    left_out = len(report['classes']) - count
    figure.suptitle(
        f'{ {"bbox": "Boxes", "segm": "Masks"}.get(metric, metric)} of validation images'
        + (f'; the {count} classes with most objects, {left_out} more in classes.json'
           if left_out else ''), fontsize=12)
    return figure


def _draw_bars(axis, classes: list[dict]) -> None:
    rows = np.arange(len(classes))
    for key, color in (('mAP_50', '#b9d3ee'), ('mAP', '#1f77b4')):
        axis.barh(rows, [c[key] or 0 for c in classes], color=color, height=.8)
    for row, c in zip(rows, classes, strict=True):
        text = 'no objects' if c['mAP'] is None else f"{c['mAP']:.3f}"
        axis.text((c['mAP_50'] or c['mAP'] or 0) + .01, row, text, fontsize=8,
                  verticalalignment='center')
    axis.set_yticks(rows, [f"{cut(c['name'])} ({c['objects']:,})" for c in classes], fontsize=8)
    axis.invert_yaxis()
    axis.set_xlim(0, 1.12)
    axis.set_title('Average precision (light: at overlap .5) by class (objects)', fontsize=10)
    axis.grid(axis='x', alpha=.3)


def _draw_curves(axis, report: dict, order: list[int]) -> None:
    known = [i for i in order if report['precision'][i] is not None]
    for i in known:
        axis.plot(report['recall'], report['precision'][i], linewidth=.8,
                  alpha=.8 if len(known) <= 12 else .3, color=None if len(known) <= 12 else '.5',
                  label=cut(report['classes'][i]['name']) if len(known) <= 12 else None)
    every = [curve for curve in report['precision'] if curve is not None]
    if every:
        axis.plot(report['recall'], np.mean(every, axis=0), color='black', linewidth=2,
                  label='mean of all classes')
        axis.legend(fontsize=7, loc='lower left')
    axis.set(xlim=(0, 1), ylim=(0, 1.02), xlabel='recall', ylabel='precision')
    axis.set_title('Precision over recall, overlap .5', fontsize=10)
    axis.grid(alpha=.3)


def _draw_confusion(axis, confusion, order: list[int], names: list[str]) -> None:
    axis.set_title(f'What is taken for what, scores from {CONFIDENT}', fontsize=10)
    if confusion is None:
        axis.set_axis_off()
        axis.text(.5, .5, 'not counted: pycocotools evaluated', horizontalalignment='center')
        return
    pick = [*order, len(confusion) - 1]
    counts = np.asarray(confusion)[np.ix_(pick, pick)]
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    share[-1] = 0  # a share of nothing means nothing: these are counts alone
    axis.imshow(share, cmap='Blues', vmin=0, vmax=1)
    labels = [cut(name) for name in names]
    ticks = np.arange(len(pick))
    axis.set_xticks(ticks, [*labels, 'nothing'], fontsize=8, rotation=90)
    axis.set_yticks(ticks, [*labels, 'nothing'], fontsize=8)
    if len(pick) <= 16:
        for row, column in np.argwhere(counts):
            axis.text(column, row, f'{counts[row, column]:,}', fontsize=7,
                      color='white' if share[row, column] > .6 else 'black',
                      horizontalalignment='center', verticalalignment='center')
    axis.set(xlabel='found', ylabel='there')


def cut(text: str, length: int = 18) -> str:
    return text if len(text) <= length else text[:length - 1] + '…'
