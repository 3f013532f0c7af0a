"""Bias-pruned DeiT-S that knows what is padding: padding ranks last and does not count in k.

Our choice, the paper has no mask. Large-scale jitter pads an image at ratio .1 to 99 %; without
the mask, columns of padding can win the selection.
"""

_base_ = './mask-rcnn_deit-s-bias-0.9-0.1_sfp_lsj-100e_coco.py'

model = dict(
    data_preprocessor=dict(type='mmext.MaskedDetDataPreprocessor'),
    backbone=dict(use_valid_mask=True))
