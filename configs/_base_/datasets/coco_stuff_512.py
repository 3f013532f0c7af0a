"""COCO-Stuff 2017, 171 classes, crops of 512²; mmdet's data set, folders and metric.

Label maps in stuffthingmaps_semseg/{train,val}2017/, made as mmdet's dataset_prepare.md says.
"""

_base_ = 'mmdet::_base_/datasets/coco_semantic.py'

crop_size = (512, 512)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=False, with_label=False, with_seg=True),
    dict(type='RandomResize', scale=(2048, 512), ratio_range=(0.5, 2.0), keep_ratio=True),
    dict(type='RandomCrop', crop_type='absolute', crop_size=crop_size, allow_negative_crop=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PhotoMetricDistortion'),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(2048, 512), keep_ratio=True),  # shorter side 512
    dict(type='LoadAnnotations', with_bbox=False, with_label=False, with_seg=True),
    dict(
        type='PackDetInputs',
        meta_keys=('img_path', 'ori_shape', 'img_shape', 'scale_factor')),
]
train_dataloader = dict(
    batch_size=4,  # x 4 GPUs = 16
    num_workers=4,
    batch_sampler=None,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(num_workers=4, dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
