_base_ = './vit-l-mae-bias_4xb64-attn_in1k.py'

model = dict(backbone=dict(keep_ratio=(0.9, 0.1)))
