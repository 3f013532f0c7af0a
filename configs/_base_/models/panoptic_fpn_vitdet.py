"""Panoptic FPN: ViTDet's Mask R-CNN and mmdet's semantic head over strides 4 to 32.

Semantic head, fusion and their losses and thresholds as mmdet's panoptic-fpn_r50_fpn_1x_coco.py:
80 things, 53 stuff classes, semantic loss weighted .5, detections from score .6 on. Our choice: the
semantic loss is the mean over image pixels; mmdet's default divides by those of the padding, too.
"""

_base_ = './mask_rcnn_vitdet.py'

model = dict(
    type='PanopticFPN',
    data_preprocessor=dict(pad_seg=True, seg_pad_value=255),
    semantic_head=dict(
        type='PanopticFPNHead',
        num_things_classes=80,
        num_stuff_classes=53,
        in_channels=256,
        inner_channels=128,
        start_level=0,
        end_level=4,
        norm_cfg=dict(type='GN', num_groups=32, requires_grad=True),
        loss_seg=dict(
            type='CrossEntropyLoss', ignore_index=255, avg_non_ignore=True, loss_weight=0.5)),
    panoptic_fusion_head=dict(
        type='HeuristicFusionHead', num_things_classes=80, num_stuff_classes=53),
    test_cfg=dict(
        rcnn=dict(score_thr=0.6, nms=dict(class_agnostic=True)),
        panoptic=dict(mask_overlap=0.5, stuff_area_limit=4096)))
