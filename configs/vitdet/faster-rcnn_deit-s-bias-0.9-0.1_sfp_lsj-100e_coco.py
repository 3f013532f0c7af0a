"""Boxes only: Faster R-CNN on bias-pruned DeiT-S. Masks of the data still crop the boxes."""

_base_ = './mask-rcnn_deit-s-bias-0.9-0.1_sfp_lsj-100e_coco.py'

model = dict(type='FasterRCNN', roi_head=dict(mask_roi_extractor=None, mask_head=None))
val_evaluator = dict(metric='bbox')
test_evaluator = dict(metric='bbox')
