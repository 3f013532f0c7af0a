_base_ = './deit-ti-bias_2xb128-100e_cifar100.py'

model = dict(backbone=dict(keep_ratio=(0.9, 0.1)))
