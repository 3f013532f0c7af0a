"""The same at 112 pixels, 50 tokens, for 4 epochs: .9 to .1 keeps 45 down to 5 columns."""

_base_ = './deit-s-bias_cifar10-sample.py'

model = dict(backbone=dict(img_size=112))

size = 112
resize = dict(type='Resize', scale=(size, size), interpolation='bicubic')
train_pipeline = [*_base_.train_pipeline[:3], resize, dict(type='PackInputs')]
test_pipeline = [dict(type='LoadImageFromFile'), resize, dict(type='PackInputs')]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

iters = 4 * 157
param_scheduler = [
    dict(type='LinearLR', start_factor=.05, end=20, by_epoch=False),
    dict(type='CosineAnnealingLR', T_max=iters, by_epoch=False)]
train_cfg = dict(max_epochs=4)
