_base_ = '../_base_/recipes/tost_in1k.py'

model = dict(
    backbone=dict(arch='small', drop_path_rate=0.05),  # ToST's; the DMST paper names none
    head=dict(in_channels=384))
