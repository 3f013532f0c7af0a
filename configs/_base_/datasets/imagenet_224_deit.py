"""ImageNet-1k with DeiT's augmentation (DeiT main.py defaults; repeated augmentation x 3).

DeiT's color jitter (.3) is not here: timm drops it when RandAugment is on. Mixup .8, CutMix 1.0
and label smoothing .1 are in the model configs.
"""

data_root = 'data/imagenet'
data_preprocessor = dict(
    num_classes=1000,
    mean=[123.675, 116.28, 103.53],
    std=[58.395, 57.12, 57.375],
    to_rgb=True)
bgr_mean = data_preprocessor['mean'][::-1]
bgr_std = data_preprocessor['std'][::-1]

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='RandomResizedCrop', scale=224, backend='pillow', interpolation='bicubic'),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(  # rand-m9-mstd0.5-inc1
        type='RandAugment',
        policies='timm_increasing',
        num_policies=2,
        total_level=10,
        magnitude_level=9,
        magnitude_std=0.5,
        hparams=dict(pad_val=[round(x) for x in bgr_mean], interpolation='bicubic')),
    dict(
        type='RandomErasing',
        erase_prob=0.25,
        mode='rand',
        min_area_ratio=0.02,
        max_area_ratio=1 / 3,
        fill_color=bgr_mean,
        fill_std=bgr_std),
    dict(type='PackInputs'),
]
test_pipeline = [  # crop ratio .875
    dict(type='LoadImageFromFile'),
    dict(
        type='ResizeEdge', scale=256, edge='short', backend='pillow', interpolation='bicubic'),
    dict(type='CenterCrop', crop_size=224),
    dict(type='PackInputs'),
]

train_dataloader = dict(
    batch_size=128,  # x 8 GPUs = 1,024
    num_workers=8,
    persistent_workers=True,
    dataset=dict(
        type='ImageNet', data_root=data_root, split='train', pipeline=train_pipeline),
    sampler=dict(type='RepeatAugSampler', num_repeats=3))
val_dataloader = dict(
    batch_size=128,
    num_workers=8,
    persistent_workers=True,
    dataset=dict(
        type='ImageNet', data_root=data_root, split='val', pipeline=test_pipeline),
    sampler=dict(type='DefaultSampler', shuffle=False))
val_evaluator = dict(type='Accuracy', topk=(1, 5))
test_dataloader = val_dataloader
test_evaluator = val_evaluator
