"""Panoptic FPN on DeiT-S, every block global and dense; recipe of the Mask R-CNN in configs/vitdet.

Our choice throughout, the papers have no panoptic segmentation.
"""

_base_ = [
    '../_base_/models/panoptic_fpn_vitdet.py',
    '../_base_/models/deit_s_featmap.py',
    '../_base_/datasets/coco_panoptic_lsj_1024.py',
    '../_base_/schedules/coco_bs16_adamw_100e.py',
    '../_base_/default_runtime_det.py',
]

model = dict(backbone=_base_.deit_s, neck=dict(in_channels=384))
default_hooks = dict(checkpoint=dict(save_best='coco_panoptic/PQ'))
