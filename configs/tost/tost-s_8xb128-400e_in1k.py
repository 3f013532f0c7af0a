_base_ = './tost-t_8xb128-400e_in1k.py'

model = dict(
    backbone=dict(arch='small', drop_path_rate=0.05),  # ToST's README
    head=dict(in_channels=384))
