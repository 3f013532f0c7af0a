"""The paper's baseline: Mask R-CNN on DeiT-S, every block global, no relative positions.

485.60 + 686.08 = 1171.68 GFLOPs at 1024²; box AP 43.3, mask AP 38.7 in the paper.
From the paper: official DeiT-S as start. Inferred from its FLOPs: every block global, no relative
positions, no class token. Our choice: learned positions resized from 14² to 64², activation
checkpointing, drop-path .1 (ViTDet's for ViT-B).
"""

_base_ = [
    '../_base_/models/mask_rcnn_vitdet.py',
    '../_base_/datasets/coco_lsj_1024.py',
    '../_base_/schedules/coco_bs16_adamw_100e.py',
    '../_base_/default_runtime_det.py',
]

model = dict(
    backbone=dict(
        type='mmext.BiasPrunedViT',
        arch='deit-small',
        img_size=1024,
        with_cls_token=False,
        out_type='featmap',
        key_bias=False,
        drop_path_rate=0.1,
        with_cp=True,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='https://dl.fbaipublicfiles.com/deit/'
            'deit_small_patch16_224-cd65a155.pth')),
    neck=dict(in_channels=384))
