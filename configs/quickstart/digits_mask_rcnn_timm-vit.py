"""digits_mask_rcnn.py on a vision transformer of timm; starts from digits_cls_timm-vit.py."""

_base_ = './digits_mask_rcnn.py'

model = dict(backbone=dict(
    _delete_=True,
    type='mmext.TimmViT',
    model_name='vit_tiny_r_s16_p8_224',
    model_args=dict(embed_dim=64, depth=4, num_heads=4, class_token=False, global_pool='avg'),
    img_size=128,
    patch_size=2,
    keep_ratio=(.9, .1),
    train_mode='gather',
    out_type='featmap',
    final_norm=True,
    init_cfg=dict(
        type='Pretrained',
        checkpoint='work_dirs/digits_cls_timm-vit/epoch_10.pth',
        prefix='backbone.')))
