"""Mask R-CNN on bias-pruned DeiT-S, LVIS v1: ViTDet's second benchmark, 1,203 classes.

As ViTDet: 156,250 iterations x 64 images = 100 epochs of 100,000; at batch 16 625,000, steps
138,889 x 4 = 555,556 and 150,463 x 4 = 601,852; rare classes repeated (threshold .001), 300
detections an image. Not as ViTDet: softmax cross-entropy as in mmdet's LVIS configs, mmdet has no
federated loss; mmdet's score threshold .0001. Needs the package lvis.
"""

_base_ = '../vitdet/mask-rcnn_deit-s-bias-0.9-0.1_sfp_lsj-737k_coco.py'

model = dict(
    roi_head=dict(bbox_head=dict(num_classes=1203), mask_head=dict(num_classes=1203)),
    test_cfg=dict(rcnn=dict(score_thr=0.0001, max_per_img=300)))

data_root = 'data/lvis_v1/'  # annotations/, train2017/, val2017/
train_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type='ClassBalancedDataset',
        oversample_thr=1e-3,
        dataset=dict(
            type='LVISV1Dataset',
            data_root=data_root,
            ann_file='annotations/lvis_v1_train.json',
            data_prefix=dict(img=''),
            filter_cfg=dict(filter_empty_gt=True),
            pipeline=_base_.train_pipeline)))
val_dataloader = dict(
    dataset=dict(
        type='LVISV1Dataset',
        data_root=data_root,
        ann_file='annotations/lvis_v1_val.json',
        data_prefix=dict(img='')))
test_dataloader = val_dataloader
val_evaluator = dict(
    _delete_=True,
    type='LVISMetric',
    ann_file=data_root + 'annotations/lvis_v1_val.json',
    metric=['bbox', 'segm'])
test_evaluator = val_evaluator

max_iters = 625000
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=1000),
    dict(
        type='MultiStepLR',
        begin=0,
        end=max_iters,
        by_epoch=False,
        milestones=[555556, 601852],
        gamma=0.1),
]
train_cfg = dict(max_iters=max_iters, val_interval=62500)
default_hooks = dict(checkpoint=dict(interval=6250, save_best='lvis/bbox_AP'))
