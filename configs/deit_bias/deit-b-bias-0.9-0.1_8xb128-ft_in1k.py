_base_ = './deit-b-bias_8xb128-ft_in1k.py'

model = dict(backbone=dict(keep_ratio=(0.9, 0.1)))
