"""Mask R-CNN on DMST-T; as on DMST-S. Starts from configs/dmst/dmst-t_8xb128-400e_in1k.py."""

_base_ = './mask-rcnn_dmst-s_sfp_lsj-100e_coco.py'

model = dict(
    backbone=dict(
        arch='tiny',
        drop_path_rate=0.0,
        init_cfg=dict(checkpoint='work_dirs/dmst-t_8xb128-400e_in1k/epoch_400.pth')),
    neck=dict(in_channels=192))
