"""A small ViT with key bias from scratch on 5,000 CIFAR-10 images; a few minutes a run.

Width 64, 6 blocks, 4 heads, patch 4 at 32 pixels = 64 tokens, no class token: a small body in which
heads can keep different columns and the schedule .9 to .1 keeps 57 down to 6 of them. Two
convolutions embed the patches and positions start as sines, which trains faster on few images.
"""

_base_ = './dmst-micro_cifar10-sample.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='mmext.BiasPrunedViT',
        arch=dict(embed_dim=64, depth=6, num_heads=4, patch_size=4),
        img_size=32,
        patch_stem='conv',
        pos_init='sincos',
        with_cls_token=False,
        keep_ratio=None,
        out_type='avg_featmap'))

size = 32
train_pipeline = [*_base_.train_pipeline[:3], dict(type='PackInputs')]
test_pipeline = [dict(type='LoadImageFromFile'), dict(type='PackInputs')]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
train_cfg = dict(val_interval=2)
