"""A small detector for own images, from nothing: the start of docs/own_data.md.

digits_mask_rcnn.py without the classifier of digits that it begins with.
"""

_base_ = './digits_mask_rcnn.py'

model = dict(backbone=dict(init_cfg=None))
default_hooks = dict(checkpoint=dict(save_best='auto'))
