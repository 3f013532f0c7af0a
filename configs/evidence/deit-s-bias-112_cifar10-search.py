"""The same for choosing settings, 2 epochs: every fifth training image is held out to validate."""

_base_ = './deit-s-bias-112_cifar10-sample.py'

held_out = list(range(0, 5000, 5))
train_dataloader = dict(dataset=dict(indices=[i for i in range(5000) if i % 5]))
val_dataloader = dict(dataset=dict(data_prefix='train', indices=held_out))
test_dataloader = val_dataloader

# 4,000 images / 32 = 125 iterations an epoch
iters = 2 * 125
param_scheduler = [
    dict(type='LinearLR', start_factor=.05, end=20, by_epoch=False),
    dict(type='CosineAnnealingLR', T_max=iters, by_epoch=False)]
train_cfg = dict(max_epochs=2)
