"""DeiT-S with key bias; as deit_bias_tiny.py."""

_base_ = './deit_bias_tiny.py'

checkpoint = 'https://dl.fbaipublicfiles.com/deit/deit_small_patch16_224-cd65a155.pth'
model = dict(
    backbone=dict(arch='deit-small', init_cfg=dict(checkpoint=checkpoint)),
    head=dict(in_channels=384))
