"""Mask R-CNN on DINOv2 ViT-S, dense; heads, data and schedule of the DeiT-S pair.

Patch 14 becomes 16, positions 37² become 64², both resampled by timm. Our choice throughout.
The checkpoint is a local file, as its authors or timm's hub publish it.
"""

_base_ = [
    '../vitdet/mask-rcnn_deit-s_sfp_lsj-100e_coco.py',
    '../_base_/models/dinov2_s_featmap.py',
]

model = dict(backbone={**_base_.dinov2_s, '_delete_': True}, neck=dict(in_channels=384))
