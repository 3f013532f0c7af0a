"""ViTDet with pruning where it pays: in the four global blocks; windows of 196 tokens stay dense.

The schedule .9 to .1 runs over all 12 blocks, so blocks 2, 5, 8 and 11 keep .755, .536, .318 and
.100 of 4,096 columns. Our choice, the paper prunes all-global backbones only. Starts from the
bias-augmented classifier.
"""

_base_ = './mask-rcnn_deit-s-bias-0.9-0.1_sfp_lsj-100e_coco.py'

model = dict(backbone=dict(window_size=14, global_blocks=(2, 5, 8, 11), rel_pos=True))
