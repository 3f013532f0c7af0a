"""DINOv2 ViT-S as the backbone of a dense predictor; no model by itself, see deit_s_featmap.py."""

dinov2_s = dict(
    type='mmext.TimmViT',
    model_name='vit_small_patch14_dinov2',
    patch_size=16,
    img_size=1024,
    out_type='featmap',
    key_bias=False,
    drop_path_rate=0.1,
    with_cp=True,
    init_cfg=dict(type='Pretrained', checkpoint='checkpoints/dinov2_vits14_pretrain.pth'))
