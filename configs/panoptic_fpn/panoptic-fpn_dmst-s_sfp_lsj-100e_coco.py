"""Panoptic FPN on DMST-S: linear attention over 4,096 tokens, padding kept out of its statistics.

Starts from configs/dmst/dmst-s_8xb128-400e_in1k.py; backbone as in configs/vitdet.
"""

_base_ = './panoptic-fpn_deit-s_sfp_lsj-100e_coco.py'

model = dict(
    data_preprocessor=dict(type='mmext.MaskedDetDataPreprocessor'),
    backbone=dict(
        _delete_=True,
        type='mmext.DMST',
        arch='small',
        attn='dmsa',
        out_type='featmap',
        drop_path_rate=0.05,
        with_cp=True,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='work_dirs/dmst-s_8xb128-400e_in1k/epoch_400.pth',
            prefix='backbone.')))
