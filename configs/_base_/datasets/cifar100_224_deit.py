"""CIFAR-100 at 224 pixels, otherwise as cifar10_224_deit.py."""

_base_ = './cifar10_224_deit.py'

data_root = 'data/cifar100'
data_preprocessor = dict(num_classes=100)
train_dataloader = dict(dataset=dict(type='CIFAR100', data_root=data_root, download=False))
val_dataloader = dict(dataset=dict(type='CIFAR100', data_root=data_root, download=False))
test_dataloader = val_dataloader
