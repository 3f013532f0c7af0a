_base_ = '../_base_/recipes/tost_in1k.py'

model = dict(backbone=dict(drop_path_rate=0.0))  # ToST's; the DMST paper names none
