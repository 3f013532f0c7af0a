"""ViTDet-B's windows and relative positions, pruned in the four global blocks; see deit-s-win."""

_base_ = './mask-rcnn_deit-b-bias-0.9-0.1_sfp_lsj-100e_coco.py'

model = dict(backbone=dict(window_size=14, global_blocks=(2, 5, 8, 11), rel_pos=True))
