"""CIFAR-100 at 224 pixels, otherwise as cifar10_224.py."""

_base_ = './cifar10_224.py'

data_root = 'data/cifar100'
data_preprocessor = dict(num_classes=100)
train_dataloader = dict(dataset=dict(type='CIFAR100', data_root=data_root))
val_dataloader = dict(dataset=dict(type='CIFAR100', data_root=data_root))
test_dataloader = val_dataloader
val_evaluator = dict(topk=(1, 5))
test_evaluator = val_evaluator
