"""Every pixel a digit or a kind of paper: digits_mask_rcnn.py and a semantic head, Panoptic FPN.

Starts from the backbone of digits_cls.py; 12 minutes of one thread.
"""

_base_ = './digits_mask_rcnn.py'

things = tuple('0123456789')
stuff = ('plain paper', 'ruled paper', 'squared paper')
model = dict(
    type='PanopticFPN',
    data_preprocessor=dict(pad_seg=True, seg_pad_value=255),
    semantic_head=dict(
        type='PanopticFPNHead',
        num_things_classes=10,
        num_stuff_classes=3,
        in_channels=64,
        inner_channels=32,
        end_level=3,  # all three levels of the pyramid
        norm_cfg=dict(type='GN', num_groups=8),
        loss_seg=dict(
            type='CrossEntropyLoss', ignore_index=255, avg_non_ignore=True, loss_weight=.5)),
    panoptic_fusion_head=dict(
        type='HeuristicFusionHead', num_things_classes=10, num_stuff_classes=3),
    test_cfg=dict(
        rcnn=dict(score_thr=.6, nms=dict(class_agnostic=True)),
        panoptic=dict(mask_overlap=.5, stuff_area_limit=64)))  # 1024² has 4096, this is 128²

data_root = 'data/digits/panoptic/'
metainfo = dict(
    classes=things + stuff,
    thing_classes=things,
    stuff_classes=stuff,
    palette=[
        (31, 119, 180), (255, 127, 14), (44, 160, 44), (214, 39, 40), (148, 103, 189),
        (140, 86, 75), (227, 119, 194), (127, 127, 127), (188, 189, 34), (23, 190, 207),
        (240, 228, 200), (190, 215, 240), (200, 240, 200)])
pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadPanopticAnnotations'),
    dict(type='Resize', scale=(128, 128), keep_ratio=True),
    dict(type='PackDetInputs',
         meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'))]
train_dataloader = dict(
    dataset=dict(
        type='CocoPanopticDataset',
        data_root=data_root,
        ann_file='annotations/panoptic_train.json',
        data_prefix=dict(img='train/', seg='annotations/panoptic_train/'),
        metainfo=metainfo,
        pipeline=pipeline))
val_dataloader = dict(
    dataset=dict(
        type='CocoPanopticDataset',
        data_root=data_root,
        ann_file='annotations/panoptic_val.json',
        data_prefix=dict(img='val/', seg='annotations/panoptic_val/'),
        metainfo=metainfo,
        pipeline=pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(
    _delete_=True,
    type='CocoPanopticMetric',
    ann_file=data_root + 'annotations/panoptic_val.json',
    seg_prefix=data_root + 'annotations/panoptic_val/')
test_evaluator = val_evaluator

# 1,500 iterations x 8 canvases / 2,400 canvases = 5 epochs
iters = 1500
param_scheduler = [
    dict(type='LinearLR', start_factor=.01, end=50, by_epoch=False),
    dict(type='CosineAnnealingLR', T_max=iters, by_epoch=False)]
train_cfg = dict(max_iters=iters, val_interval=500)
default_hooks = dict(checkpoint=dict(interval=500))
