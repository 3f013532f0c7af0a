_base_ = '../_base_/recipes/tost_in1k.py'

model = dict(
    backbone=dict(type='mmext.ToST', arch='medium', drop_path_rate=0.15),  # ToST's README
    head=dict(in_channels=512))
