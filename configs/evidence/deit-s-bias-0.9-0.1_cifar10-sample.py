"""Of 26 columns the blocks keep 23 down to 2; by masks in training, gathered in validation."""

_base_ = './deit-s-bias_cifar10-sample.py'

model = dict(backbone=dict(keep_ratio=(.9, .1)))
