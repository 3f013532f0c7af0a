"""The plain DeiT-Ti, without key bias: the baseline, evaluated with the official file.

DeiT publishes 72.202 % top-1 for it. Trained, it goes on from that file by the recipe of the
bias-augmented models, which is our choice.
"""

_base_ = './deit-ti-bias_8xb128-ft_in1k.py'

model = dict(backbone=dict(key_bias=False))
