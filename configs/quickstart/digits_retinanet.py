"""Finds handwritten digits in one stage: a small RetinaNet on the backbone of digits_cls.py."""

_base_ = './digits_mask_rcnn.py'

strides = [8, 16, 32]
model = dict(
    _delete_=True,
    type='RetinaNet',
    data_preprocessor=_base_.model.data_preprocessor,
    backbone=_base_.model.backbone,
    neck={**_base_.model.neck, 'scale_factors': [1, .5], 'strides': strides},
    bbox_head=dict(
        type='RetinaHead',
        num_classes=10,
        in_channels=64,
        feat_channels=64,
        stacked_convs=2,
        anchor_generator=dict(
            type='AnchorGenerator', octave_base_scale=3, scales_per_octave=3, ratios=[1., 1.7],
            strides=strides),
        bbox_coder=dict(type='DeltaXYWHBBoxCoder'),
        loss_cls=dict(type='FocalLoss', use_sigmoid=True, gamma=2., alpha=.25),
        loss_bbox=dict(type='L1Loss')),
    train_cfg=dict(
        assigner=dict(
            type='MaxIoUAssigner', pos_iou_thr=.5, neg_iou_thr=.4, min_pos_iou=0,
            ignore_iof_thr=-1),
        sampler=dict(type='PseudoSampler'),
        allowed_border=-1,
        pos_weight=-1),
    test_cfg=dict(
        nms_pre=200, min_bbox_size=0, score_thr=.05, nms=dict(type='nms', iou_threshold=.5),
        max_per_img=20))
val_evaluator = dict(metric='bbox')
test_evaluator = val_evaluator
