"""The quickstart's digits detector on a small ViT that timm makes; starts from the classifier."""

_base_ = '../quickstart/digits_mask_rcnn.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='mmext.TimmViT',
        model_name='vit_tiny_patch16_224',
        patch_size=8,
        img_size=128,
        model_args=dict(
            embed_dim=64, depth=4, num_heads=4, class_token=False, global_pool='avg'),
        out_type='featmap',
        final_norm=True,
        keep_ratio=(.9, .1),
        train_mode='gather',
        init_cfg=dict(
            type='Pretrained', checkpoint='work_dirs/digits_cls_timm-vit/epoch_20.pth')))
