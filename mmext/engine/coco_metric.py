"""mmdet's CocoMetric on a fast backend."""

from collections import OrderedDict
from collections.abc import Sequence
from tempfile import TemporaryDirectory

import numpy as np
import torch
from mmdet.datasets.api_wrappers import COCO
from mmdet.evaluation import CocoMetric as MmdetCocoMetric
from mmengine.logging import MMLogger
from terminaltables import AsciiTable

from mmext.registry import METRICS

from .by_class import class_report
from .coco_evaluation import (
    BACKENDS,
    BOX,
    CATEGORY,
    IMAGE,
    SCORE,
    average_precision,
    encode,
    evaluate,
)

STATS = {
    'mAP': 0, 'mAP_50': 1, 'mAP_75': 2, 'mAP_s': 3, 'mAP_m': 4, 'mAP_l': 5, 'AR@100': 6,
    'AR@300': 7, 'AR@1000': 8, 'AR_s@1000': 9, 'AR_m@1000': 10, 'AR_l@1000': 11}
COLUMNS = {'mAP': (0, None), 'mAP_50': (0, .5), 'mAP_75': (0, .75), 'mAP_s': (1, None),
           'mAP_m': (2, None), 'mAP_l': (3, None)}  # of the classwise table: area, threshold


@METRICS.register_module()
class CocoMetric(MmdetCocoMetric):
    """``mmdet.CocoMetric`` without the wait: the same arguments, keys, numbers and tables.

    Detections stay arrays on their way to the evaluator instead of becoming lists of dicts, a JSON
    file and lists of dicts again; the evaluator is hotcoco. ``metric='proposal'`` and files for
    which hotcoco would differ are computed by pycocotools (see
    :mod:`mmext.engine.coco_evaluation`). ``'proposal_fast'`` is refused: mmdet's needs a NumPy
    older than 1.24.

    The one difference: in the classwise table mmdet names classes in the order of the file though
    pycocotools sorts them by id, so for a file in another order its rows are exchanged.

    Args:
        backend: 'hotcoco' or 'pycocotools'; all others are mmdet's.

    Attributes:
        runs: metric -> evaluator of the last evaluation, for those who draw it.
    """

    def __init__(self, *args, backend: str = 'hotcoco', **kwargs):
        super().__init__(*args, **kwargs)
        if backend not in BACKENDS:
            raise ValueError(f'backend {backend!r} is none of {", ".join(BACKENDS)}')
        unknown = set(self.metric_items or []) - set(STATS)
        if unknown:
            raise ValueError(f'metric_items {sorted(unknown)} are none of {", ".join(STATS)}')
        if 'proposal_fast' in self.metrics:
            raise ValueError("metric='proposal_fast' of mmdet fails with NumPy >= 1.24; 'proposal' "
                             'measures recall, too')
        self.backend = backend
        self.runs = {}

    def process(self, data_batch: dict, data_samples: Sequence[dict]) -> None:
        """Keep what was predicted on a batch, masks as RLE."""
        first = len(self.results)
        super().process(data_batch, [with_rle(sample) for sample in data_samples])
        for _, pred in self.results[first:]:
            for key, value in pred.items():
                if isinstance(value, np.ndarray):
                    pred[key] = value.copy()  # a view would keep the network's output in memory
            if 'masks' in pred:
                # an array of objects, because mmengine walks through lists of dicts at the end
                masks = np.empty(len(pred['masks']), dtype=object)
                masks[:] = pred['masks']
                pred['masks'] = masks

    def compute_metrics(self, results: list) -> dict[str, float]:
        """Numbers of all images; ``results`` are pairs of mmdet's ``process``."""
        logger = MMLogger.get_current_instance()
        gts, preds = zip(*results, strict=True)
        self.runs = {}
        if self._coco_api is None:
            logger.info('Converting ground truth to coco format...')
            with TemporaryDirectory() as folder:
                self._coco_api = COCO(self.gt_to_coco_json(
                    gts, self.outfile_prefix or f'{folder}/results'))
        if self.cat_ids is None:
            self.cat_ids = self._coco_api.get_cat_ids(cat_names=self.dataset_meta['classes'])
        if self.img_ids is None:
            self.img_ids = self._coco_api.get_img_ids()
        if self.outfile_prefix is not None:
            self.results2json(preds, self.outfile_prefix)
            logger.info(f'results are saved in {self.outfile_prefix}.*.json')
        values = OrderedDict()
        for metric in [] if self.format_only else self.metrics:
            logger.info(f'Evaluating {metric}...')
            if metric == 'segm' and 'masks' not in preds[0]:
                raise KeyError(f'{metric} is not in results')
            table, masks = detections(preds, self.cat_ids, metric)
            if not len(table):
                logger.error('The testing results of the whole dataset is empty.')
                break
            run = evaluate(
                self._coco_api, table, masks, cat_ids=self.cat_ids, img_ids=self.img_ids,
                max_dets=self.proposal_nums, iou_thrs=self.iou_thrs, use_cats=metric != 'proposal',
                backend=self.backend)
            run.summarize()
            self.runs[metric] = run
            if metric == 'proposal':
                values.update((item, float(f'{run.stats[STATS[item]]:.3f}'))
                              for item in self.metric_items or list(STATS)[6:])
                continue
            if self.classwise:
                values.update(self.log_classes(run, logger))
            values.update((f'{metric}_{item}', float(round(run.stats[STATS[item]], 3)))
                          for item in self.metric_items or list(STATS)[:6])
            logger.info(f'{metric}_mAP_copypaste: ' + ' '.join(f'{v:.3f}' for v in run.stats[:6]))
        return values

    def class_report(self) -> dict[str, dict]:
        """For boxes and masks of the last evaluation: see ``mmext.engine.by_class``."""
        return {metric: class_report(run, self._coco_api) for metric, run in self.runs.items()
                if run.params.useCats}

    def log_classes(self, run, logger) -> dict[str, float]:
        """AP of every class, logged as a table, in the order of the annotation file."""
        row = {category: i for i, category in enumerate(run.params.catIds)}
        rows, values = [], {}
        for category in self.cat_ids:
            name = self._coco_api.cats[category]['name']
            numbers = [np.round(average_precision(run, row[category], *column), 3)
                       for column in COLUMNS.values()]
            rows.append([name, *map(str, numbers)])
            values[f'{name}_precision'] = numbers[0]
        logger.info('\n' + AsciiTable([['category', *COLUMNS], *rows]).table)
        return values


def with_rle(sample: dict) -> dict:
    """The data sample with encoded masks, if it has a tensor (N, H, W) of them."""
    pred = sample['pred_instances']
    if not isinstance(pred.get('masks'), torch.Tensor):
        return sample
    masks = encode(pred['masks'].detach().cpu().numpy().astype(bool, copy=False))
    return {**sample, 'pred_instances': {**pred, 'masks': masks}}


def detections(preds: Sequence[dict], cat_ids: Sequence[int],
               metric: str) -> tuple[np.ndarray, list[dict] | None]:
    """Predictions of ``process`` as a table (N, 7) and, for ``metric='segm'``, N masks."""
    counts = [len(pred['labels']) for pred in preds]
    boxes = np.concatenate([pred['bboxes'].reshape(-1, 4) for pred in preds]).astype(np.float64)
    boxes[:, 2:] -= boxes[:, :2]
    score = 'mask_scores' if metric == 'segm' and 'mask_scores' in preds[0] else 'scores'
    table = np.empty((len(boxes), 7))
    table[:, IMAGE] = np.repeat([pred['img_id'] for pred in preds], counts)
    table[:, BOX] = boxes
    table[:, SCORE] = np.concatenate([pred[score] for pred in preds])
    table[:, CATEGORY] = np.asarray(cat_ids)[np.concatenate([pred['labels'] for pred in preds])]
    return table, [m for pred in preds for m in pred['masks']] if metric == 'segm' else None
