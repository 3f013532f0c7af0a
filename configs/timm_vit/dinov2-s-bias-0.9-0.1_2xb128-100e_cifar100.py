"""Transfer of DINOv2 ViT-S with key bias to CIFAR-100, keep ratio .9 to .1 over the depth."""

_base_ = './dinov2-s_2xb128-100e_cifar100.py'

model = dict(backbone=dict(key_bias=True, keep_ratio=(0.9, 0.1)))
