"""Mask R-CNN on bias-pruned MAE ViT-L, keep ratio .9 to .1 over 24 blocks.

Starts from configs/deit_bias/vit-l-mae-bias-0.9-0.1_4xb64-attn_in1k.py.
"""

_base_ = './mask-rcnn_vit-l-mae_sfp_lsj-100e_coco.py'

model = dict(
    backbone=dict(
        key_bias=True,
        keep_ratio=(0.9, 0.1),
        init_cfg=dict(
            checkpoint='work_dirs/vit-l-mae-bias-0.9-0.1_4xb64-attn_in1k/epoch_10.pth',
            prefix='backbone.')))
