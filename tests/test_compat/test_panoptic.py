"""mmdet's panoptic metric and visualizer leave predictions as they are and draw empty ones."""

import cv2
import numpy as np
import pytest
import torch
from mmengine.structures import PixelData

import mmext.registry  # noqa: F401

pytest.importorskip('panopticapi')


def test_metric_does_not_write_into_the_prediction(tmp_path):
    from mmdet.evaluation import CocoPanopticMetric
    cv2.imwrite(str(tmp_path / 'a.png'), np.full((4, 4, 3), (0, 0, 9), np.uint8))
    metric = CocoPanopticMetric(seg_prefix=str(tmp_path))
    metric.dataset_meta = dict(classes=('cat', 'grass'), thing_classes=('cat',))
    found = torch.tensor([[[2, 2, 1, 1]] * 4], dtype=torch.int32)  # 2: void
    metric.process({}, [dict(
        img_id=1, img_path='a.png', ori_shape=(4, 4), pred_panoptic_seg=dict(sem_seg=found),
        segments_info=[dict(id=9, category=1, is_thing=False)])])
    assert found.tolist() == [[[2, 2, 1, 1]] * 4]
    assert metric.results[0].pq_per_cat[1].fp == 1, 'it was counted, IoU .5 is no match'


def test_visualizer_draws_a_prediction_of_nothing():
    from mmdet.structures import DetDataSample
    from mmdet.visualization import DetLocalVisualizer
    image = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    drawn = {}
    for label in (1, 2):
        visualizer = DetLocalVisualizer()
        visualizer.dataset_meta = dict(classes=('cat', 'grass'), palette=[(9, 9, 9), (0, 250, 0)])
        sample = DetDataSample(pred_panoptic_seg=PixelData(
            sem_seg=torch.full((1, 32, 32), label, dtype=torch.int32)))
        visualizer.add_datasample('a', image, sample, draw_gt=False)
        drawn[label] = visualizer.get_image()
    assert np.array_equal(drawn[2], image) and not np.array_equal(drawn[1], image)
