"""COCO 2017 panoptic with large-scale jitter to a 1024² canvas, as coco_lsj_1024.py for instances.

Paths are mmdet's: annotations/panoptic_{train,val}2017.json and the folders of PNGs beside them.
"""

_base_ = 'mmdet::_base_/datasets/coco_panoptic.py'

image_size = (1024, 1024)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadPanopticAnnotations'),
    dict(type='RandomFlip', prob=0.5),
    dict(type='RandomResize', scale=image_size, ratio_range=(0.1, 2.0), keep_ratio=True),
    dict(
        type='RandomCrop',
        crop_type='absolute',
        crop_size=image_size,
        recompute_bbox=True,
        allow_negative_crop=True),
    dict(type='FilterAnnotations', min_gt_bbox_wh=(1e-2, 1e-2), keep_empty=False),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=image_size, keep_ratio=True),  # longest side 1024
    dict(type='LoadPanopticAnnotations'),
    dict(
        type='PackDetInputs',
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')),
]
train_dataloader = dict(
    batch_size=4,  # x 4 GPUs = 16
    num_workers=4,
    batch_sampler=None,  # every image is padded to the canvas anyway
    dataset=dict(filter_cfg=dict(_delete_=True, filter_empty_gt=True), pipeline=train_pipeline))
val_dataloader = dict(num_workers=4, dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
