"""Mask R-CNN on bias-pruned DeiT-B, keep ratio .9 to .1; as the paper's detector on DeiT-S.

Starts from configs/deit_bias/deit-b-bias-0.9-0.1_8xb128-ft_in1k.py.
"""

_base_ = './mask-rcnn_deit-s-bias-0.9-0.1_sfp_lsj-100e_coco.py'

model = dict(
    backbone=dict(
        arch='deit-base',
        init_cfg=dict(
            checkpoint='work_dirs/deit-b-bias-0.9-0.1_8xb128-ft_in1k/epoch_40.pth')),
    neck=dict(in_channels=768))
