_base_ = [
    '../_base_/models/dmst_small.py',
    '../_base_/datasets/food101_224.py',
    '../_base_/schedules/tost_transfer_bs256_adamw_200e.py',
    '../_base_/default_runtime_cls.py',
]

# weights of dmst-s_8xb128-400e_in1k.py
checkpoint = 'work_dirs/dmst-s_8xb128-400e_in1k/epoch_400.pth'
model = dict(
    backbone=dict(init_cfg=dict(type='Pretrained', checkpoint=checkpoint)),
    head=dict(num_classes=101))
