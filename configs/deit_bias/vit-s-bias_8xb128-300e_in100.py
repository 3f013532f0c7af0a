_base_ = './vit-ti-bias_8xb128-300e_in100.py'

model = dict(backbone=dict(arch='deit-small'), head=dict(in_channels=384))
