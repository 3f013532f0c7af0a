"""Mask R-CNN on DINOv2 ViT-L, dense; heads, data and schedule of the DeiT-S pair.

Patch 14 becomes 16, positions 37² become 64², both resampled by timm. Our choice throughout.
The checkpoint is a local file, as its authors or timm's hub publish it.
"""

_base_ = '../vitdet/mask-rcnn_deit-s_sfp_lsj-100e_coco.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='mmext.TimmViT',
        model_name='vit_large_patch14_dinov2',
        patch_size=16,
        img_size=1024,
        out_type='featmap',
        key_bias=False,
        drop_path_rate=0.4,
        with_cp=True,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='checkpoints/dinov2_vitl14_pretrain.pth')),
    neck=dict(in_channels=1024))
optim_wrapper = dict(paramwise_cfg=dict(layer_decay_rate=0.8))
