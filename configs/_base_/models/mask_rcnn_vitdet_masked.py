"""``mask_rcnn_vitdet.py`` told what is padding: an image has the same result on any canvas.

Our choice; the papers pad to a square canvas and do not mask. Training stays on the 1024² canvas of
large-scale jitter; in test an image is padded to whole patches only.
"""

_base_ = './mask_rcnn_vitdet.py'

model = dict(
    data_preprocessor=dict(type='mmext.MaskedDetDataPreprocessor', val_pad_size_divisor=16),
    neck=dict(masked=True),
    rpn_head=dict(type='mmext.MaskedRPNHead'),
    roi_head=dict(
        bbox_roi_extractor=dict(type='mmext.MaskedRoIExtractor'),
        mask_roi_extractor=dict(type='mmext.MaskedRoIExtractor')))
