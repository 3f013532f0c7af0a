"""Overfits 64 COCO images with a narrow Mask R-CNN on a bias-pruned ViT-S; about half an hour.

A check that detection learns, not a result: validation is on the training images themselves, the
test data are 42 other images. 160 x 160 pixels (100 tokens, of which the blocks keep 90 down to
10), the first six blocks frozen, heads of width 64 instead of 256, few regions, classes share
boxes and masks; one scale, no flip.
"""

_base_ = '../_base_/models/mask_rcnn_vitdet.py'

default_scope = 'mmdet'

width = 64
roi = dict(out_channels=width, finest_scale=24, roi_layer=dict(sampling_ratio=1))
model = dict(
    data_preprocessor=dict(pad_size_divisor=160),
    backbone=dict(
        type='mmext.BiasPrunedViT',
        arch='deit-small',
        img_size=160,
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
        rcnn=dict(sampler=dict(num=32, pos_fraction=.5))),
    test_cfg=dict(rpn=dict(nms_pre=200, max_per_img=100), rcnn=dict(max_per_img=50)))

data_root = 'data/coco_mini/'
train_ann = 'annotations/instances_train2017.json'
test_ann = 'annotations/instances_val2017.json'
train_set = dict(
    type='CocoDataset',
    data_root=data_root,
    ann_file=train_ann,
    data_prefix=dict(img='train2017/'),
    pipeline=[
        dict(type='LoadImageFromFile'),
        dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
        dict(type='Resize', scale=(160, 160), keep_ratio=True),
        dict(type='PackDetInputs',
             meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'))])
loader = dict(batch_size=2, num_workers=0)
train_dataloader = dict(
    **loader, sampler=dict(type='InfiniteSampler', shuffle=True), dataset=train_set)
val_dataloader = dict(
    **loader, sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(**train_set, test_mode=True))
test_dataloader = dict(
    **loader, sampler=dict(type='DefaultSampler', shuffle=False),
    dataset={**train_set, 'ann_file': test_ann, 'data_prefix': dict(img='val2017/'),
             'test_mode': True})
val_evaluator = dict(type='CocoMetric', ann_file=data_root + train_ann, metric=['bbox', 'segm'])
test_evaluator = dict(type='CocoMetric', ann_file=data_root + test_ann, metric=['bbox', 'segm'])

# 1,600 iterations x 2 images / 64 = 50 epochs; the pre-trained backbone at a tenth of the rate
iters = 1600
optim_wrapper = dict(
    optimizer=dict(type='AdamW', lr=1e-3, weight_decay=.01),
    paramwise_cfg=dict(custom_keys=dict(backbone=dict(lr_mult=.1))),
    clip_grad=dict(max_norm=1))
param_scheduler = [
    dict(type='LinearLR', start_factor=.01, end=50, by_epoch=False),
    dict(type='CosineAnnealingLR', T_max=iters, by_epoch=False)]
train_cfg = dict(by_epoch=False, max_iters=iters, val_interval=400)
val_cfg = dict()
test_cfg = dict()

default_hooks = dict(
    logger=dict(type='LoggerHook', interval=50),
    checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=400, max_keep_ckpts=1))
custom_hooks = [dict(type='mmext.RunArtifactsHook')]
log_processor = dict(by_epoch=False)
randomness = dict(seed=0)
