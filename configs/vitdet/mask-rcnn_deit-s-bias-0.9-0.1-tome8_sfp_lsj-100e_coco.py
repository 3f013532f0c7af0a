"""Pruning and token merging together: about a twenty-fourth of the tokens merges in every block.

8 of 196 tokens per block at 224² are round(8 x 4096 / 196) = 167 at 1024²; from 4,096 tokens the
blocks go down to 2,092, and the map handed to the pyramid is un-merged to 64². k counts the tokens
that are left. Our choice: r = 8; logits carry the log of the token sizes (supervised start).
"""

_base_ = './mask-rcnn_deit-s-bias-0.9-0.1_sfp_lsj-100e_coco.py'

model = dict(backbone=dict(tome_r=8, tome_prop_attn=True))
