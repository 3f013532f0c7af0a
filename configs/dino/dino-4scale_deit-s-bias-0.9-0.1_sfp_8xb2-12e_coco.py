"""DINO on bias-pruned DeiT-S: mmdet's dino-4scale_r50_8xb2-12e_coco.py with another backbone.

Transformer, losses, data, 12 epochs and rates (backbone x .1) are mmdet's; the Simple Feature
Pyramid gives strides 8 to 64. Starts from configs/deit_bias/deit-s-bias-0.9-0.1_8xb128-ft_in1k.py.
"""

_base_ = [
    'mmdet::dino/dino-4scale_r50_8xb2-12e_coco.py',
    '../_base_/models/deit_s_featmap.py',
]

model = dict(
    data_preprocessor=dict(pad_size_divisor=16),  # whole patches
    backbone={**_base_.deit_s_bias, '_delete_': True},
    neck=dict(
        _delete_=True,
        type='mmext.SimpleFeaturePyramid',
        in_channels=384,
        out_channels=256,
        scale_factors=[2, 1, 0.5],
        num_outs=4,
        strides=[8, 16, 32, 64]))
default_hooks = dict(
    checkpoint=dict(type='mmext.SafeCheckpointHook', max_keep_ckpts=2, save_best='coco/bbox_mAP'),
    artifacts=dict(type='mmext.RunArtifactsHook'))
