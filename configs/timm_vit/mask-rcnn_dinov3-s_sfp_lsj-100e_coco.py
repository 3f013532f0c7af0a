"""Mask R-CNN on DINOv3 ViT-S, dense; heads, data and schedule of the DeiT-S pair.

Rotary positions, four registers. Our choice throughout.
The checkpoint is a local file, as its authors or timm's hub publish it.
"""

_base_ = '../vitdet/mask-rcnn_deit-s_sfp_lsj-100e_coco.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='mmext.TimmViT',
        model_name='vit_small_patch16_dinov3',
        img_size=1024,
        out_type='featmap',
        key_bias=False,
        drop_path_rate=0.1,
        with_cp=True,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='checkpoints/vit_small_patch16_dinov3.lvd1689m.safetensors')),
    neck=dict(in_channels=384))
