"""Mask2Former (instance) on bias-pruned DeiT-S: mmdet's config of that name with another backbone.

Heads, losses, data, 368,750 iterations of 16 images (50 epochs) and their rates are mmdet's; the
Simple Feature Pyramid gives strides 4 to 32. Starts from
configs/deit_bias/deit-s-bias-0.9-0.1_8xb128-ft_in1k.py.
"""

_base_ = [
    'mmdet::mask2former/mask2former_r50_8xb2-lsj-50e_coco.py',
    '../_base_/models/deit_s_featmap.py',
]

model = dict(
    backbone={**_base_.deit_s_bias, '_delete_': True},
    neck=dict(
        type='mmext.SimpleFeaturePyramid',
        in_channels=384,
        out_channels=256,
        scale_factors=[4, 2, 1, 0.5],
        num_outs=4,
        strides=[4, 8, 16, 32]),
    panoptic_head=dict(in_channels=[256] * 4))
default_hooks = dict(
    checkpoint=dict(type='mmext.SafeCheckpointHook'),
    artifacts=dict(type='mmext.RunArtifactsHook'))
