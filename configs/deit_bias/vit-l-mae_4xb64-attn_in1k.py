"""The plain ViT-L of MAE's fine-tuning, without key bias: the baseline, evaluated with MAE's file.

MAE publishes 85.952 % top-1 for it. Trained, its attention goes on from that file by the recipe of
the bias-augmented model, which is our choice.
"""

_base_ = './vit-l-mae-bias_4xb64-attn_in1k.py'

model = dict(backbone=dict(key_bias=False))
