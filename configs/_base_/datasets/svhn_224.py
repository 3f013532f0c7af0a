"""SVHN at 224 pixels, otherwise as cifar10_224.py.

The DMST paper adds this data set without naming a recipe; our choice is the one of the others.
Options: without flips  --cfg-options train_dataloader.dataset.pipeline.2.p=0
         extra images   --cfg-options train_dataloader.dataset.split=train+extra
"""

_base_ = './cifar10_224.py'

data_root = 'data/svhn'
train_dataloader = dict(
    dataset=dict(
        _delete_=True, type='mmext.SVHN', data_root=data_root, split='train',
        pipeline={{_base_.train_pipeline}}))
val_dataloader = dict(
    dataset=dict(
        _delete_=True, type='mmext.SVHN', data_root=data_root, split='test',
        pipeline={{_base_.test_pipeline}}))
test_dataloader = val_dataloader
