"""Mask R-CNN on bias-pruned DeiT-S, Cityscapes instances, 8 classes.

Data (shorter side 800 to 1024, each image 8 times an epoch) and length (8 x 8 = 64 passes) are
mmdet's mask-rcnn_r50_fpn_1x_cityscapes.py, optimizer and heads those of configs/vitdet; batch 8 x 1
as there. A test image of 2048 x 1024 has 8,192 tokens. Needs the package cityscapesscripts.
"""

_base_ = [
    '../_base_/models/mask_rcnn_vitdet.py',
    '../_base_/models/deit_s_featmap.py',
    'mmdet::_base_/datasets/cityscapes_instance.py',
    '../_base_/schedules/coco_bs16_adamw_100e.py',
    '../_base_/default_runtime_det.py',
]

model = dict(
    data_preprocessor=dict(pad_size_divisor=32),
    backbone={**_base_.deit_s_bias, 'img_size': (1024, 2048)},
    neck=dict(in_channels=384),
    roi_head=dict(bbox_head=dict(num_classes=8), mask_head=dict(num_classes=8)))

# 2,975 images x 8 / batch 8 = 2,975 iterations an epoch
max_epochs = 8
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=500),
    dict(type='MultiStepLR', begin=0, end=max_epochs, by_epoch=True, milestones=[7], gamma=0.1),
]
train_cfg = dict(max_epochs=max_epochs, val_interval=1)
auto_scale_lr = dict(base_batch_size=8)
