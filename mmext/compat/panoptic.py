"""Two faults of mmdet's panoptic segmentation.

On the CPU its metric writes into the prediction that it is given: void pixels become 0, the first
class, in all that is drawn or saved after it. Its visualizer fails on a prediction of nothing but
void, which ends a test with images.
"""

import functools

from .inferencers import when_imported


def repair_when_imported() -> None:
    """Repair mmdet's metric and visualizer; where they are not imported yet, as soon as they are.
    """
    for name, repair in REPAIRS.items():
        when_imported(name, repair)


def _parse_a_copy(module) -> None:
    parse = module.CocoPanopticMetric._parse_predictions

    @functools.wraps(parse)
    def parse_a_copy(self, pred, *args, **kwargs):
        found = pred['pred_panoptic_seg']
        found = {**found, 'sem_seg': found['sem_seg'].clone()}
        return parse(self, {**pred, 'pred_panoptic_seg': found}, *args, **kwargs)

    module.CocoPanopticMetric._parse_predictions = parse_a_copy


def _draw_nothing(module) -> None:
    draw = module.DetLocalVisualizer._draw_panoptic_seg

    @functools.wraps(draw)
    def draw_what_there_is(self, image, panoptic_seg, classes, palette):
        if (panoptic_seg.sem_seg == len(classes)).all():  # mmdet's label of void
            return image
        return draw(self, image, panoptic_seg, classes, palette)

    module.DetLocalVisualizer._draw_panoptic_seg = draw_what_there_is


REPAIRS = {
    'mmdet.evaluation.metrics.coco_panoptic_metric': _parse_a_copy,
    'mmdet.visualization.local_visualizer': _draw_nothing,
}
