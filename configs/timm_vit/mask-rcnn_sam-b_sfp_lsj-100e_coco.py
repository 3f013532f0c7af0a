"""Mask R-CNN on Segment Anything's ViT-B, dense; heads, data and schedule of the DeiT-S pair.

Windows of 14² in all blocks but 2, 5, 8 and 11, and relative positions: only those four blocks
are pruned. Our choice throughout.
The checkpoint is a local file, as its authors or timm's hub publish it.
"""

_base_ = '../vitdet/mask-rcnn_deit-s_sfp_lsj-100e_coco.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='mmext.TimmViT',
        model_name='samvit_base_patch16',
        img_size=1024,
        out_type='featmap',
        key_bias=False,
        drop_path_rate=0.1,
        with_cp=True,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='checkpoints/sam_vit_b_01ec64.pth')),
    neck=dict(in_channels=768))
