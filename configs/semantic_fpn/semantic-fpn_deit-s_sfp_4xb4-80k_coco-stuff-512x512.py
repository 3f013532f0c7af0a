"""Semantic FPN on dense DeiT-S, COCO-Stuff, 171 classes, crops of 512². Our choice throughout."""

_base_ = [
    '../_base_/models/semantic_fpn_vitdet.py',
    '../_base_/models/deit_s_featmap.py',
    '../_base_/datasets/coco_stuff_512.py',
    '../_base_/schedules/seg_bs16_adamw_80k.py',
    '../_base_/default_runtime_det.py',
]

model = dict(
    backbone={**_base_.deit_s, 'img_size': 512},
    neck=dict(in_channels=384),
    semantic_head=dict(num_stuff_classes=171))
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=8000, save_best='mIoU'))
log_processor = dict(by_epoch=False)
