"""DeiT-B with key bias; as deit_bias_tiny.py."""

_base_ = './deit_bias_tiny.py'

checkpoint = 'https://dl.fbaipublicfiles.com/deit/deit_base_patch16_224-b5f2ef4d.pth'
model = dict(
    backbone=dict(arch='deit-base', init_cfg=dict(checkpoint=checkpoint)),
    head=dict(in_channels=768))
