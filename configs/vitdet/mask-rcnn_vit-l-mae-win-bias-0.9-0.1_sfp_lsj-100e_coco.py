"""ViTDet-L's windows and relative positions, pruned in its four global blocks 5, 11, 17 and 23.

They keep .726, .517, .309 and .100 of 4,096 columns.
"""

_base_ = './mask-rcnn_vit-l-mae-bias-0.9-0.1_sfp_lsj-100e_coco.py'

model = dict(backbone=dict(window_size=14, global_blocks=(5, 11, 17, 23), rel_pos=True))
