"""RetinaNet on bias-pruned DeiT-S: mmdet's head and losses, data and schedule of configs/vitdet.

The pyramid's strides are RetinaNet's, 8 to 128; masks of the data still crop the boxes. Starts from
configs/deit_bias/deit-s-bias-0.9-0.1_8xb128-ft_in1k.py.
"""

_base_ = [
    'mmdet::_base_/models/retinanet_r50_fpn.py',
    '../_base_/models/deit_s_featmap.py',
    '../_base_/datasets/coco_lsj_1024.py',
    '../_base_/schedules/coco_bs16_adamw_100e.py',
    '../_base_/default_runtime_det.py',
]

model = dict(
    data_preprocessor=dict(pad_size_divisor=1024),
    backbone={**_base_.deit_s_bias, '_delete_': True},
    neck=dict(
        _delete_=True,
        type='mmext.SimpleFeaturePyramid',
        in_channels=384,
        out_channels=256,
        scale_factors=[2, 1, 0.5],
        num_outs=5,
        strides=[8, 16, 32, 64, 128]))
val_evaluator = dict(metric='bbox')
test_evaluator = val_evaluator
