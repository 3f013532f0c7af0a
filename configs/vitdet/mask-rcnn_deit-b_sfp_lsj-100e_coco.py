"""Mask R-CNN on DeiT-B, every block global; as the paper's baseline on DeiT-S."""

_base_ = './mask-rcnn_deit-s_sfp_lsj-100e_coco.py'

model = dict(
    backbone=dict(
        arch='deit-base',
        init_cfg=dict(
            checkpoint='https://dl.fbaipublicfiles.com/deit/'
            'deit_base_patch16_224-b5f2ef4d.pth')),
    neck=dict(in_channels=768))
