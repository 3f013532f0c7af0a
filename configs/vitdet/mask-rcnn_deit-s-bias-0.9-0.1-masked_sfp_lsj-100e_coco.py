"""Bias-pruned DeiT-S that knows what is padding: padding ranks last and does not count in k.

Our choice, the paper has no mask. Large-scale jitter pads an image at ratio .1 to 99 %; without
the mask, columns of padding can win the selection. Positions are cropped, not stretched, so that an
image has the same result on its own canvas as on the square one.
"""

_base_ = './mask-rcnn_deit-s-bias-0.9-0.1_sfp_lsj-100e_coco.py'

model = dict(
    data_preprocessor=dict(type='mmext.MaskedDetDataPreprocessor', val_pad_size_divisor=16),
    backbone=dict(use_valid_mask=True, pos_fit='crop'),
    neck=dict(masked=True),
    rpn_head=dict(type='mmext.MaskedRPNHead'),
    roi_head=dict(
        bbox_roi_extractor=dict(type='mmext.MaskedRoIExtractor'),
        mask_roi_extractor=dict(type='mmext.MaskedRoIExtractor')))
