_base_ = [
    '../_base_/models/deit_bias_tiny.py',
    '../_base_/datasets/cifar10_224_deit.py',
    '../_base_/schedules/cifar_bs256_adamw_deit.py',
    '../_base_/default_runtime_cls.py',
]

model = dict(head=dict(num_classes=10))
