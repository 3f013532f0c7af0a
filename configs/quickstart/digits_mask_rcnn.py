"""Finds handwritten digits, boxes and masks: a small Mask R-CNN on a bias-pruned plain ViT.

Starts from the backbone of digits_cls.py; about ten minutes on 2 cores.
"""

default_scope = 'mmdet'

strides = [4, 8, 16]
channels = 64
roi_extractor = dict(
    type='SingleRoIExtractor',
    roi_layer=dict(type='RoIAlign', output_size=7, sampling_ratio=1),
    out_channels=channels,
    featmap_strides=strides[:2],
    finest_scale=28)  # digits of 28 to 50 pixels are looked up at stride 4
bbox_coder = dict(type='DeltaXYWHBBoxCoder')
assigner = dict(type='MaxIoUAssigner', match_low_quality=True)
model = dict(
    type='MaskRCNN',
    data_preprocessor=dict(
        type='DetDataPreprocessor',
        mean=[127.5] * 3, std=[64.] * 3, bgr_to_rgb=True,
        pad_mask=True, pad_size_divisor=16),
    # that of digits_cls.py on 16 x 16 instead of 6 x 6 patches: positions are resampled
    backbone=dict(
        type='mmext.BiasPrunedViT',
        arch=dict(embed_dim=64, depth=4, num_heads=4),
        img_size=128,
        patch_size=8,
        patch_stem='conv',
        pos_init='sincos',
        with_cls_token=False,
        keep_ratio=(.9, .1),
        train_mode='gather',  # the same values as 'mask', faster here
        out_type='featmap',
        final_norm=True,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='work_dirs/digits_cls/epoch_10.pth',
            prefix='backbone.')),
    neck=dict(
        type='mmext.SimpleFeaturePyramid',
        in_channels=64,
        out_channels=channels,
        scale_factors=[2, 1, .5],
        num_outs=3,
        in_stride=8,
        strides=strides),
    rpn_head=dict(
        type='RPNHead',
        in_channels=channels,
        feat_channels=channels,
        anchor_generator=dict(
            type='AnchorGenerator', scales=[4], ratios=[1., 1.7], strides=strides),
        bbox_coder=bbox_coder,
        loss_cls=dict(type='CrossEntropyLoss', use_sigmoid=True),
        loss_bbox=dict(type='L1Loss')),
    roi_head=dict(
        type='StandardRoIHead',
        bbox_roi_extractor=roi_extractor,
        bbox_head=dict(
            type='Shared2FCBBoxHead',
            in_channels=channels,
            fc_out_channels=256,
            roi_feat_size=7,
            num_classes=10,
            bbox_coder=dict(type='DeltaXYWHBBoxCoder', target_stds=[.1, .1, .2, .2]),
            reg_class_agnostic=True,
            loss_cls=dict(type='CrossEntropyLoss'),
            loss_bbox=dict(type='L1Loss')),
        mask_roi_extractor={
            **roi_extractor,
            'roi_layer': dict(type='RoIAlign', output_size=14, sampling_ratio=1)},
        mask_head=dict(
            type='FCNMaskHead',
            num_convs=2,
            in_channels=channels,
            conv_out_channels=channels,
            num_classes=10,
            class_agnostic=True,
            norm_cfg=dict(type='GN', num_groups=8),
            loss_mask=dict(type='CrossEntropyLoss', use_mask=True, loss_weight=2.))),
    train_cfg=dict(
        rpn=dict(
            assigner={**assigner, 'pos_iou_thr': .7, 'neg_iou_thr': .3, 'min_pos_iou': .3},
            sampler=dict(
                type='RandomSampler', num=64, pos_fraction=.5, add_gt_as_proposals=False),
            allowed_border=-1,
            pos_weight=-1),
        rpn_proposal=dict(
            nms_pre=200, max_per_img=100, nms=dict(type='nms', iou_threshold=.7),
            min_bbox_size=0),
        rcnn=dict(
            assigner={**assigner, 'pos_iou_thr': .5, 'neg_iou_thr': .5, 'min_pos_iou': .5,
                      'match_low_quality': False},
            sampler=dict(type='RandomSampler', num=20, pos_fraction=.5),
            mask_size=28,
            pos_weight=-1)),
    test_cfg=dict(
        rpn=dict(
            nms_pre=200, max_per_img=100, nms=dict(type='nms', iou_threshold=.7),
            min_bbox_size=0),
        rcnn=dict(
            score_thr=.05, nms=dict(type='nms', iou_threshold=.5), max_per_img=20,
            mask_thr_binary=.5)))

data_root = 'data/digits/detection/'
metainfo = dict(classes=tuple('0123456789'))
load_image = dict(type='LoadImageFromFile')
load_annotations = dict(type='LoadAnnotations', with_bbox=True, with_mask=True)
resize = dict(type='Resize', scale=(128, 128), keep_ratio=True)
pack = dict(
    type='PackDetInputs',
    meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'))
train_pipeline = [load_image, load_annotations, resize, pack]
test_pipeline = [load_image, resize, load_annotations, pack]  # evaluated at the image's own size
train_dataloader = dict(
    batch_size=8,
    num_workers=0,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type='CocoDataset',
        data_root=data_root,
        ann_file='annotations/instances_train.json',
        data_prefix=dict(img='train/'),
        metainfo=metainfo,
        pipeline=train_pipeline))
val_dataloader = dict(
    batch_size=16,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='CocoDataset',
        data_root=data_root,
        ann_file='annotations/instances_val.json',
        data_prefix=dict(img='val/'),
        metainfo=metainfo,
        test_mode=True,
        pipeline=test_pipeline))
val_evaluator = dict(
    type='mmext.CocoMetric', ann_file=data_root + 'annotations/instances_val.json',
    metric=['bbox', 'segm'])
test_dataloader = val_dataloader
test_evaluator = val_evaluator

# 2,000 iterations x 8 canvases / 2,400 canvases = 6.7 epochs
iters = 2000
optim_wrapper = dict(
    optimizer=dict(type='AdamW', lr=1e-3, weight_decay=.05), clip_grad=dict(max_norm=1))
param_scheduler = [
    dict(type='LinearLR', start_factor=.01, end=50, by_epoch=False),
    dict(type='CosineAnnealingLR', T_max=iters, by_epoch=False)]
train_cfg = dict(by_epoch=False, max_iters=iters, val_interval=400)
val_cfg = test_cfg = dict()

default_hooks = dict(
    logger=dict(type='LoggerHook', interval=50),
    checkpoint=dict(
        type='mmext.SafeCheckpointHook', by_epoch=False, interval=200, max_keep_ckpts=1),
    artifacts=dict(type='mmext.RunArtifactsHook'))
visualizer = dict(
    type='DetLocalVisualizer', vis_backends=[dict(type='LocalVisBackend')])
log_processor = dict(by_epoch=False)
randomness = dict(seed=0)
