"""Overfits 64 COCO images with a small Mask R-CNN on a bias-pruned ViT-S; 20 minutes on a core.

A check that detection learns, not a result: validation is on the training images, the test data
are 42 other images. 192 pixels (144 tokens), heads of width 64, one scale, no flip.
"""

_base_ = '../quickstart/digits_mask_rcnn.py'

strides = [4, 8, 16, 32]
roi_layer = dict(featmap_strides=strides[:3], finest_scale=24)
head = dict(num_classes=80)
model = dict(
    data_preprocessor=dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375]),
    backbone=dict(
        _delete_=True,
        type='mmext.BiasPrunedViT',
        arch='deit-small',
        img_size=192,
        with_cls_token=False,
        keep_ratio=(.9, .1),
        train_mode='gather',
        out_type='featmap',
        final_norm=True,
        init_cfg=dict(
            type='Pretrained', checkpoint='weights/vit_small_patch16_224_pretrained.safetensors')),
    neck=dict(in_channels=384, scale_factors=[4, 2, 1, .5], num_outs=4, in_stride=16,
              strides=strides),
    rpn_head=dict(anchor_generator=dict(ratios=[.5, 1., 2.], strides=strides)),
    roi_head=dict(bbox_roi_extractor=roi_layer, bbox_head=head, mask_roi_extractor=roi_layer,
                  mask_head=head),
    train_cfg=dict(rcnn=dict(sampler=dict(num=48))),
    test_cfg=dict(rcnn=dict(max_per_img=50)))

data_root = 'data/coco_mini/'
pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='Resize', scale=(192, 192), keep_ratio=True),
    dict(type='PackDetInputs',
         meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'))]
train_set = dict(
    _delete_=True,
    type='CocoDataset',
    data_root=data_root,
    ann_file='annotations/instances_train2017.json',
    data_prefix=dict(img='train2017/'),
    pipeline=pipeline)
train_dataloader = dict(batch_size=4, dataset=train_set)
val_dataloader = dict(batch_size=4, dataset=dict(**train_set, test_mode=True))
val_evaluator = dict(ann_file=data_root + 'annotations/instances_train2017.json')
test_dataloader = dict(
    batch_size=4,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='CocoDataset',
        data_root=data_root,
        ann_file='annotations/instances_val2017.json',
        data_prefix=dict(img='val2017/'),
        test_mode=True,
        pipeline=pipeline))
test_evaluator = dict(
    type='CocoMetric', ann_file=data_root + 'annotations/instances_val2017.json',
    metric=['bbox', 'segm'])
test_cfg = dict()

# 800 iterations x 4 images / 64 = 50 epochs; the backbone learns at a fifth of the rate
iters = 800
optim_wrapper = dict(
    optimizer=dict(type='AdamW', lr=5e-4, weight_decay=.01),
    paramwise_cfg=dict(custom_keys=dict(backbone=dict(lr_mult=.2), key_bias=dict(lr_mult=1))))
param_scheduler = [
    dict(type='LinearLR', start_factor=.01, end=50, by_epoch=False),
    dict(type='CosineAnnealingLR', T_max=iters, by_epoch=False)]
train_cfg = dict(max_iters=iters, val_interval=200)
