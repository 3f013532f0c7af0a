"""Semantic FPN on bias-pruned DeiT-S, ADE20K; of 1,024 columns the blocks keep 922 down to 102.

Starts from configs/deit_bias/deit-s-bias-0.9-0.1_8xb128-ft_in1k.py.
"""

_base_ = './semantic-fpn_deit-s_sfp_4xb4-80k_ade20k-512x512.py'

model = dict(backbone={**_base_.deit_s_bias, 'img_size': 512, '_delete_': True})
