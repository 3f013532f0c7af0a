_base_ = './vit-ti-bias_8xb128-300e_in100.py'

# layer-wise, .5 on average
model = dict(backbone=dict(keep_ratio=(0.9, 0.1)))
