"""Panoptic FPN on DINOv2 ViT-S with key bias, keep ratio .9 to .1 over the depth."""

_base_ = './panoptic-fpn_dinov2-s_sfp_lsj-100e_coco.py'

model = dict(backbone=dict(key_bias=True, keep_ratio=(0.9, 0.1)))
