"""Mask R-CNN on MAE's ViT-L, every block global.

Drop-path .4 and layer decay .8 as ViTDet-L. Starts, as ViTDet, from MAE's pre-training without
fine-tuning.
"""

_base_ = './mask-rcnn_deit-s_sfp_lsj-100e_coco.py'

model = dict(
    backbone=dict(
        arch='vit-large',
        drop_path_rate=0.4,
        init_cfg=dict(
            checkpoint='https://dl.fbaipublicfiles.com/mae/pretrain/mae_pretrain_vit_large.pth')),
    neck=dict(in_channels=1024))
optim_wrapper = dict(paramwise_cfg=dict(layer_decay_rate=0.8))
