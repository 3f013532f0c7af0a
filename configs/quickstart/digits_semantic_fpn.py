"""A label for every pixel, ten digits and three kinds of paper: a semantic head alone.

Backbone and pyramid of digits_mask_rcnn.py, from the backbone of digits_cls.py; 6 minutes of one
thread.
"""

_base_ = './digits_panoptic_fpn.py'

model = dict(
    _delete_=True,
    type='mmext.SemanticSegmentor',
    data_preprocessor=_base_.model.data_preprocessor,
    backbone=_base_.model.backbone,
    neck=_base_.model.neck,
    semantic_head={
        **_base_.model.semantic_head,
        'num_things_classes': 0,
        'num_stuff_classes': 13,
        'inner_channels': 64,
        'loss_seg': dict(type='CrossEntropyLoss', ignore_index=255, avg_non_ignore=True)})

data_root = 'data/digits/panoptic/'
pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=False, with_label=False, with_seg=True),
    dict(type='Resize', scale=(128, 128), keep_ratio=True),
    dict(type='PackDetInputs', meta_keys=('img_path', 'ori_shape', 'img_shape', 'scale_factor'))]
dataset = dict(
    _delete_=True,
    type='BaseSegDataset',
    data_root=data_root,
    img_suffix='.png',
    metainfo=dict(classes=_base_.metainfo.classes, palette=_base_.metainfo.palette),
    pipeline=pipeline)
train_dataloader = dict(
    dataset={**dataset, 'data_prefix': dict(img_path='train', seg_map_path='semantic/train')})
val_dataloader = dict(
    dataset={**dataset, 'data_prefix': dict(img_path='val', seg_map_path='semantic/val'),
             'test_mode': True})
test_dataloader = val_dataloader
val_evaluator = dict(_delete_=True, type='SemSegMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator
