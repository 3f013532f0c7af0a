"""CIFAR-10 at 224 pixels for the transfer of DeiT; augmentation is our choice (DeiT's)."""

data_root = 'data/cifar10'
data_preprocessor = dict(
    num_classes=10,
    mean=[123.675, 116.28, 103.53],
    std=[58.395, 57.12, 57.375],
    to_rgb=False)  # the data set hands out RGB
fill = [round(x) for x in data_preprocessor['mean']]

train_pipeline = [
    dict(type='RandomResizedCrop', scale=224, backend='pillow', interpolation='bicubic'),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(
        type='RandAugment',
        policies='timm_increasing',
        num_policies=2,
        total_level=10,
        magnitude_level=9,
        magnitude_std=0.5,
        hparams=dict(pad_val=fill, interpolation='bicubic')),
    dict(type='PackInputs'),
]
test_pipeline = [
    dict(type='Resize', scale=(224, 224), backend='pillow', interpolation='bicubic'),
    dict(type='PackInputs'),
]
train_dataloader = dict(
    batch_size=128,  # x 2 GPUs = 256
    num_workers=8,
    persistent_workers=True,
    dataset=dict(
        type='CIFAR10', data_root=data_root, download=False, split='train',
        pipeline=train_pipeline),
    sampler=dict(type='DefaultSampler', shuffle=True))
val_dataloader = dict(
    batch_size=128,
    num_workers=8,
    persistent_workers=True,
    dataset=dict(
        type='CIFAR10', data_root=data_root, download=False, split='test',
        pipeline=test_pipeline),
    sampler=dict(type='DefaultSampler', shuffle=False))
val_evaluator = dict(type='Accuracy', topk=(1, 5))
test_dataloader = val_dataloader
test_evaluator = val_evaluator
