_base_ = '../_base_/recipes/tost_in1k.py'

model = dict(
    backbone=dict(arch='medium', drop_path_rate=0.15),  # ToST's; the DMST paper has no M
    head=dict(in_channels=512))
