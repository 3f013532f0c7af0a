_base_ = './dmst-micro_cifar10-sample.py'

model = dict(backbone=dict(attn='mhsa'))
