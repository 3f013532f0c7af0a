"""ViTDet on DeiT-S: windows of 14, every third block global, decomposed relative positions.

As detectron2's ViT-B: global blocks 2, 5, 8, 11, relative positions start at zero. Our choice: no
key bias.
"""

_base_ = './mask-rcnn_deit-s_sfp_lsj-100e_coco.py'

model = dict(backbone=dict(window_size=14, global_blocks=(2, 5, 8, 11), rel_pos=True))
