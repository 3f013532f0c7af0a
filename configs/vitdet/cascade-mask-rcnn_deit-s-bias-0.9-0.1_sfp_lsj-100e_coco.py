"""Cascade Mask R-CNN on bias-pruned DeiT-S: class-agnostic box heads at IoU .5, .6 and .7.

As ViTDet's cascade but for two habits of mmdet's: one mask head per stage instead of one, and
losses weighted 1, .5, .25 instead of gradients scaled by a third.
"""

_base_ = './mask-rcnn_deit-s-bias-0.9-0.1_sfp_lsj-100e_coco.py'

box_head = {**_base_.model.roi_head.bbox_head, 'reg_class_agnostic': True}
rcnn = _base_.model.train_cfg.rcnn
stage_stds = [[0.1, 0.1, 0.2, 0.2], [0.05, 0.05, 0.1, 0.1], [0.033, 0.033, 0.067, 0.067]]

model = dict(
    type='CascadeRCNN',
    roi_head=dict(
        type='CascadeRoIHead',
        num_stages=3,
        stage_loss_weights=[1, 0.5, 0.25],
        bbox_head=[
            {**box_head, 'bbox_coder': dict(type='DeltaXYWHBBoxCoder', target_stds=stds)}
            for stds in stage_stds
        ]),
    train_cfg=dict(
        rcnn=[
            {**rcnn, 'assigner': {
                **rcnn['assigner'], 'pos_iou_thr': iou, 'neg_iou_thr': iou, 'min_pos_iou': iou}}
            for iou in (0.5, 0.6, 0.7)
        ]))
