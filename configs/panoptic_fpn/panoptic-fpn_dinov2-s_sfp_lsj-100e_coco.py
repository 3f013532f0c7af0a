"""Panoptic FPN on DINOv2 ViT-S, dense; backbone as in configs/timm_vit."""

_base_ = [
    './panoptic-fpn_deit-s_sfp_lsj-100e_coco.py',
    '../_base_/models/dinov2_s_featmap.py',
]

model = dict(backbone={**_base_.dinov2_s, '_delete_': True})
