_base_ = [
    '../_base_/models/deit_bias_base.py',
    '../_base_/datasets/cifar100_224_deit.py',
    '../_base_/schedules/cifar_bs256_adamw_deit.py',
    '../_base_/default_runtime_cls.py',
]

model = dict(head=dict(num_classes=100))
