"""Panoptic FPN on bias-pruned DeiT-S, keep ratio .9 to .1 over the depth.

Starts from the bias-augmented classifier, which has to be trained first:
configs/deit_bias/deit-s-bias-0.9-0.1_8xb128-ft_in1k.py.
"""

_base_ = './panoptic-fpn_deit-s_sfp_lsj-100e_coco.py'

model = dict(backbone={**_base_.deit_s_bias, '_delete_': True})
