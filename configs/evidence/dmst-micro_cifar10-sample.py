"""DMST of 0.4 M parameters from scratch on 5,000 CIFAR-10 images; a few minutes a run.

Width 64, 6 blocks, 4 heads, patch 8 at 64 pixels = 64 tokens. tost-micro and vit-micro are the same
with TSSA and softmax attention in place of DMSA.
"""

_base_ = './deit-s-bias_cifar10-sample.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='mmext.DMST',
        arch=dict(embed_dim=64, depth=6, num_heads=4, patch_size=8),
        attn=dict(type='mmext.DMSA')),
    head=dict(in_channels=64))

size = 64
resize = dict(type='Resize', scale=(size, size), interpolation='bicubic')
train_pipeline = [*_base_.train_pipeline[:3], resize, dict(type='PackInputs')]
test_pipeline = [dict(type='LoadImageFromFile'), resize, dict(type='PackInputs')]
train_dataloader = dict(batch_size=32, dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(batch_size=100, dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

# 5,000 images / 32 = 157 iterations an epoch
epochs = 12
optim_wrapper = dict(
    _delete_=True,
    optimizer=dict(type='AdamW', lr=1e-3, weight_decay=.05),
    clip_grad=dict(max_norm=1))
param_scheduler = [
    dict(type='LinearLR', start_factor=.01, end=157, by_epoch=False),
    dict(type='CosineAnnealingLR', T_max=epochs * 157, by_epoch=False)]
train_cfg = dict(max_epochs=epochs, val_interval=1)
