"""Finds handwritten digits by queries: a small DINO on the backbone of digits_cls.py.

mmdet's DINO with 3 levels of width 64, 2 + 2 layers and 40 queries instead of 4, 256, 6 + 6 and
900. 12 minutes of one thread.
"""

_base_ = './digits_mask_rcnn.py'

width = 64
deformable = dict(embed_dims=width, num_heads=4, num_levels=3, dropout=0.)
ffn = dict(embed_dims=width, feedforward_channels=256, ffn_drop=0.)
model = dict(
    _delete_=True,
    type='DINO',
    num_queries=40,
    num_feature_levels=3,
    with_box_refine=True,
    as_two_stage=True,
    data_preprocessor=_base_.model.data_preprocessor,
    backbone=_base_.model.backbone,
    neck={**_base_.model.neck, 'scale_factors': [1, .5], 'strides': [8, 16, 32]},
    encoder=dict(num_layers=2, layer_cfg=dict(self_attn_cfg=deformable, ffn_cfg=ffn)),
    decoder=dict(
        num_layers=2,
        return_intermediate=True,
        layer_cfg=dict(
            self_attn_cfg=dict(embed_dims=width, num_heads=4, dropout=0.),
            cross_attn_cfg=deformable,
            ffn_cfg=ffn),
        post_norm_cfg=None),
    positional_encoding=dict(num_feats=width // 2, normalize=True, temperature=20),
    bbox_head=dict(
        type='DINOHead',
        num_classes=10,
        embed_dims=width,
        sync_cls_avg_factor=True,
        loss_cls=dict(type='FocalLoss', use_sigmoid=True, gamma=2., alpha=.25),
        loss_bbox=dict(type='L1Loss', loss_weight=5.),
        loss_iou=dict(type='GIoULoss', loss_weight=2.)),
    dn_cfg=dict(
        label_noise_scale=.5,
        box_noise_scale=1.,
        group_cfg=dict(dynamic=True, num_groups=None, num_dn_queries=40)),
    train_cfg=dict(
        assigner=dict(
            type='HungarianAssigner',
            match_costs=[
                dict(type='FocalLossCost', weight=2.),
                dict(type='BBoxL1Cost', weight=5., box_format='xywh'),
                dict(type='IoUCost', iou_mode='giou', weight=2.)])),
    test_cfg=dict(max_per_img=20))

val_evaluator = dict(metric='bbox')
test_evaluator = val_evaluator

# 2,000 iterations x 8 canvases / 2,400 canvases = 6.7 epochs
iters = 2000
param_scheduler = [
    dict(type='LinearLR', start_factor=.01, end=50, by_epoch=False),
    dict(type='CosineAnnealingLR', T_max=iters, by_epoch=False)]
train_cfg = dict(max_iters=iters, val_interval=500)
default_hooks = dict(checkpoint=dict(interval=500))
