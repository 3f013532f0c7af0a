"""Every pixel a digit or a kind of paper, by queries: a small Mask2Former, panoptic.

mmdet's Mask2Former of width 64 with 2 + 3 layers and 30 queries instead of 256, 6 + 9 and 100, on
the backbone of digits_cls.py.
"""

_base_ = './digits_panoptic_fpn.py'

width = 64
ffn = dict(
    embed_dims=width, feedforward_channels=256, num_fcs=2, ffn_drop=0.,
    act_cfg=dict(type='ReLU', inplace=True))
attention = dict(embed_dims=width, num_heads=4, dropout=0., batch_first=True)
positions = dict(num_feats=width // 2, normalize=True)
model = dict(
    _delete_=True,
    type='Mask2Former',
    data_preprocessor=_base_.model.data_preprocessor,
    backbone=_base_.model.backbone,
    neck={**_base_.model.neck, 'num_outs': 4, 'strides': [4, 8, 16, 32]},
    panoptic_head=dict(
        type='Mask2FormerHead',
        in_channels=[width] * 4,
        strides=[4, 8, 16, 32],
        feat_channels=width,
        out_channels=width,
        num_things_classes=10,
        num_stuff_classes=3,
        num_queries=30,
        num_transformer_feat_level=3,
        pixel_decoder=dict(
            type='MSDeformAttnPixelDecoder',
            num_outs=3,
            norm_cfg=dict(type='GN', num_groups=8),
            act_cfg=dict(type='ReLU'),
            encoder=dict(
                num_layers=2,
                layer_cfg=dict(self_attn_cfg={**attention, 'num_levels': 3, 'num_points': 4},
                               ffn_cfg=ffn)),
            positional_encoding=positions),
        enforce_decoder_input_project=False,
        positional_encoding=positions,
        transformer_decoder=dict(
            return_intermediate=True,
            num_layers=3,
            layer_cfg=dict(self_attn_cfg=attention, cross_attn_cfg=attention, ffn_cfg=ffn)),
        loss_cls=dict(type='CrossEntropyLoss', loss_weight=2., class_weight=[1.] * 13 + [.1]),
        loss_mask=dict(type='CrossEntropyLoss', use_sigmoid=True, loss_weight=5.),
        loss_dice=dict(
            type='DiceLoss', use_sigmoid=True, activate=True, naive_dice=True, eps=1.,
            loss_weight=5.)),
    panoptic_fusion_head=dict(
        type='MaskFormerFusionHead', num_things_classes=10, num_stuff_classes=3),
    train_cfg=dict(
        num_points=1024,
        oversample_ratio=3.,
        importance_sample_ratio=.75,
        assigner=dict(
            type='HungarianAssigner',
            match_costs=[
                dict(type='ClassificationCost', weight=2.),
                dict(type='CrossEntropyLossCost', weight=5., use_sigmoid=True),
                dict(type='DiceCost', weight=5., pred_act=True, eps=1.)]),
        sampler=dict(type='MaskPseudoSampler')),
    test_cfg=dict(
        panoptic_on=True, semantic_on=False, instance_on=False, max_per_image=20, iou_thr=.8,
        filter_low_score=True))
