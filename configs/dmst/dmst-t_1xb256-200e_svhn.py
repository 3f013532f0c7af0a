_base_ = [
    '../_base_/models/dmst_tiny.py',
    '../_base_/datasets/svhn_224.py',
    '../_base_/schedules/tost_scratch_bs256_adamw_200e.py',
    '../_base_/default_runtime_cls.py',
]

model = dict(head=dict(num_classes=10))
