_base_ = './deit-b-bias_2xb128-100e_cifar10.py'

model = dict(backbone=dict(keep_ratio=(0.9, 0.1)))
