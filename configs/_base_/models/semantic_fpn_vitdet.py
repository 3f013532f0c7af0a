"""Semantic FPN: mmdet's semantic head alone on strides 4 to 32; the experiment sets the classes.

Every class is "stuff" to the head, so that none are merged. Head as in Panoptic FPN, loss weight 1.
"""

model = dict(
    type='mmext.SemanticSegmentor',
    data_preprocessor=dict(
        type='DetDataPreprocessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_size_divisor=16,
        pad_seg=True,
        seg_pad_value=255),
    backbone=dict(),
    neck=dict(
        type='mmext.SimpleFeaturePyramid',
        out_channels=256,
        scale_factors=[4, 2, 1, 0.5],
        num_outs=4,
        in_stride=16,
        strides=[4, 8, 16, 32]),
    semantic_head=dict(
        type='PanopticFPNHead',
        num_things_classes=0,
        in_channels=256,
        inner_channels=128,
        start_level=0,
        end_level=4,
        norm_cfg=dict(type='GN', num_groups=32, requires_grad=True),
        loss_seg=dict(type='CrossEntropyLoss', ignore_index=255, avg_non_ignore=True)))
