"""Dense DeiT-S that knows what is padding: the counterpart of the masked bias-pruned pair.

Our choice, the paper has no mask. Padding stays out of the attention, and an image is tested on its
own canvas instead of the square one; else the paper's baseline.
"""

_base_ = './mask-rcnn_deit-s_sfp_lsj-100e_coco.py'

model = dict(
    data_preprocessor=dict(type='mmext.MaskedDetDataPreprocessor', val_pad_size_divisor=16),
    backbone=dict(use_valid_mask=True, pos_fit='crop'),
    neck=dict(masked=True),
    rpn_head=dict(type='mmext.MaskedRPNHead'),
    roi_head=dict(
        bbox_roi_extractor=dict(type='mmext.MaskedRoIExtractor'),
        mask_roi_extractor=dict(type='mmext.MaskedRoIExtractor')))
