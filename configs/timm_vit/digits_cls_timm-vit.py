"""The quickstart's digits classifier on a small ViT that timm makes, with key bias."""

_base_ = '../quickstart/digits_cls.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='mmext.TimmViT',
        model_name='vit_tiny_patch16_224',
        patch_size=8,
        img_size=48,
        model_args=dict(
            embed_dim=64, depth=4, num_heads=4, class_token=False, global_pool='avg'),
        out_type='avg_featmap',
        keep_ratio=(.9, .1),
        train_mode='gather'))
