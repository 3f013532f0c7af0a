_base_ = '../_base_/recipes/tost_in1k.py'

model = dict(
    backbone=dict(
        type='mmext.ToST',
        attn=dict(_delete_=True, type='mmext.TSSA'),
        drop_path_rate=0.0))  # ToST's README
