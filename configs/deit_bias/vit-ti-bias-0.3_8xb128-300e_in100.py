_base_ = './vit-ti-bias_8xb128-300e_in100.py'

model = dict(backbone=dict(keep_ratio=0.3))
