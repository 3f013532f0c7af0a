"""Overfits 64 COCO images with a narrow Mask R-CNN on a bias-pruned ViT-S; an hour on one core.

A check that detection learns, not a result: validation is on the training images themselves, the
test data are 42 other images. 320 x 320 pixels (400 tokens, of which the blocks keep 360 down to
40), the first six blocks frozen, heads of width 64 instead of 256, few regions, classes share
boxes and masks; one scale, no flip.
"""

_base_ = '../_base_/models/mask_rcnn_vitdet.py'

default_scope = 'mmdet'

width = 64
roi = dict(out_channels=width, finest_scale=24, roi_layer=dict(sampling_ratio=1))
model = dict(
    data_preprocessor=dict(pad_size_divisor=320),
    backbone=dict(
        type='mmext.BiasPrunedViT',
        arch='deit-small',
        img_size=320,
        with_cls_token=False,
        keep_ratio=(.9, .1),
        out_type='featmap',
        final_norm=True,
        frozen_stages=6,
        init_cfg=dict(
            type='Pretrained', checkpoint='weights/vit_small_patch16_224_pretrained.safetensors')),
    neck=dict(in_channels=384, out_channels=width),
    rpn_head=dict(in_channels=width, feat_channels=width, anchor_generator=dict(scales=[4])),
    roi_head=dict(
        bbox_roi_extractor=roi,
        bbox_head=dict(in_channels=width, conv_out_channels=width, fc_out_channels=256,
                       reg_class_agnostic=True),
        mask_roi_extractor=roi,
        mask_head=dict(in_channels=width, conv_out_channels=width, class_agnostic=True)),
    train_cfg=dict(
        rpn=dict(sampler=dict(num=64)),
        rpn_proposal=dict(nms_pre=200, max_per_img=100),
        rcnn=dict(sampler=dict(num=48, pos_fraction=.5))),
    test_cfg=dict(rpn=dict(nms_pre=200, max_per_img=100), rcnn=dict(max_per_img=50)))

data_root = 'data/coco_mini/'
train_ann = 'annotations/instances_train2017.json'
test_ann = 'annotations/instances_val2017.json'
load = dict(type='LoadImageFromFile')
annotations = dict(type='LoadAnnotations', with_bbox=True, with_mask=True)
resize = dict(type='Resize', scale=(320, 320), keep_ratio=True)
pack = dict(
    type='PackDetInputs',
    meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'))
train_set = dict(
    type='CocoDataset',
    data_root=data_root,
    ann_file=train_ann,
    data_prefix=dict(img='train2017/'),
    pipeline=[load, annotations, resize, pack])
test_pipeline = [load, resize, annotations, pack]  # true objects stay in the original size
loader = dict(batch_size=2, num_workers=0)
train_dataloader = dict(
    **loader, sampler=dict(type='InfiniteSampler', shuffle=True), dataset=train_set)
val_dataloader = dict(
    **loader, sampler=dict(type='DefaultSampler', shuffle=False),
    dataset={**train_set, 'pipeline': test_pipeline, 'test_mode': True})
test_dataloader = dict(
    **loader, sampler=dict(type='DefaultSampler', shuffle=False),
    dataset={**train_set, 'ann_file': test_ann, 'data_prefix': dict(img='val2017/'),
             'pipeline': test_pipeline, 'test_mode': True})
val_evaluator = dict(
    type='mmext.CocoMetric', ann_file=data_root + train_ann, metric=['bbox', 'segm'])
test_evaluator = dict(
    type='mmext.CocoMetric', ann_file=data_root + test_ann, metric=['bbox', 'segm'])

# 3,200 iterations x 2 images / 64 = 100 epochs; the pre-trained backbone at a tenth of the rate
iters = 3200
optim_wrapper = dict(
    optimizer=dict(type='AdamW', lr=1e-3, weight_decay=.01),
    paramwise_cfg=dict(custom_keys=dict(backbone=dict(lr_mult=.1))),
    clip_grad=dict(max_norm=1))
param_scheduler = [
    dict(type='LinearLR', start_factor=.01, end=50, by_epoch=False),
    dict(type='CosineAnnealingLR', T_max=iters, by_epoch=False)]
train_cfg = dict(by_epoch=False, max_iters=iters, val_interval=800)
val_cfg = dict()
test_cfg = dict()

default_hooks = dict(
    logger=dict(type='LoggerHook', interval=50),
    checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=800, max_keep_ckpts=1))
custom_hooks = [dict(type='mmext.RunArtifactsHook')]
log_processor = dict(by_epoch=False)
randomness = dict(seed=0)
