"""Mask R-CNN on ToST-S; as on DMST-S. Starts from configs/tost/tost-s_8xb128-400e_in1k.py.

An official ToST-S file fits as well: set its path, and `prefix=''`.
"""

_base_ = './mask-rcnn_dmst-s_sfp_lsj-100e_coco.py'

model = dict(
    backbone=dict(
        attn=dict(_delete_=True, type='mmext.TSSA'),
        init_cfg=dict(checkpoint='work_dirs/tost-s_8xb128-400e_in1k/epoch_400.pth')))
