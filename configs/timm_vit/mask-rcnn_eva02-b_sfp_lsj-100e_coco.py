"""Mask R-CNN on EVA-02 ViT-B, dense; heads, data and schedule of the DeiT-S pair.

Rotary positions, SwiGLU; images normalized as CLIP's. Patch 14 becomes 16. Our choice throughout.
The checkpoint is a local file, as its authors or timm's hub publish it.
"""

_base_ = '../vitdet/mask-rcnn_deit-s_sfp_lsj-100e_coco.py'

model = dict(
    data_preprocessor=dict(
        mean=[122.7709383, 116.7460125, 104.09373615],
        std=[68.5005327, 66.6321579, 70.32316305]),
    backbone=dict(
        _delete_=True,
        type='mmext.TimmViT',
        model_name='eva02_base_patch14_224',
        patch_size=16,
        img_size=1024,
        out_type='featmap',
        key_bias=False,
        drop_path_rate=0.1,
        with_cp=True,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='checkpoints/eva02_base_patch14_224.mim_in22k.safetensors')),
    neck=dict(in_channels=768))
