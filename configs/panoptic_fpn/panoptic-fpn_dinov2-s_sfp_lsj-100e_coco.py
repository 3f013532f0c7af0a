"""Panoptic FPN on DINOv2 ViT-S, dense; backbone as in configs/timm_vit."""

_base_ = './panoptic-fpn_deit-s_sfp_lsj-100e_coco.py'

model = dict(backbone=dict(
    _delete_=True,
    type='mmext.TimmViT',
    model_name='vit_small_patch14_dinov2',
    patch_size=16,
    img_size=1024,
    out_type='featmap',
    key_bias=False,
    drop_path_rate=0.1,
    with_cp=True,
    init_cfg=dict(type='Pretrained', checkpoint='checkpoints/dinov2_vits14_pretrain.pth')))
