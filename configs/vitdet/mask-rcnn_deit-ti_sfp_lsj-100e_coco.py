"""Mask R-CNN on DeiT-Ti, every block global; as the paper's baseline on DeiT-S."""

_base_ = './mask-rcnn_deit-s_sfp_lsj-100e_coco.py'

model = dict(
    backbone=dict(
        arch='deit-tiny',
        init_cfg=dict(
            checkpoint='https://dl.fbaipublicfiles.com/deit/'
            'deit_tiny_patch16_224-a1311bcf.pth')),
    neck=dict(in_channels=192))
