"""ImageNet-100: 100 classes of ImageNet-1k with torchvision's RandAugment (n = 2, m = 9).

The classes, imagenet100_classes.txt, are those of imagenet100.txt of "Contrastive Multiview
Coding" (https://github.com/HobbitLong/CMC, 126,689 training and 5,000 validation images), sorted,
so that they agree with the order of class folders. The paper does not name its list: our choice.
For another list change the file and `classes`. Get the folders as links into ImageNet-1k:

    python tools/dataset_converters/imagenet100.py data/imagenet data/imagenet100

Mixup .2, CutMix 1.0 and label smoothing .1 are in the model configs. Interpolation and test crop
as in torchvision's reference scripts: our choice.
"""

data_root = 'data/imagenet100'
classes = '{{ fileDirname }}/imagenet100_classes.txt'
data_preprocessor = dict(
    num_classes=100,
    mean=[123.675, 116.28, 103.53],
    std=[58.395, 57.12, 57.375],
    to_rgb=True)

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='RandomResizedCrop', scale=224, backend='pillow', interpolation='bilinear'),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='NumpyToPIL', to_rgb=True),
    dict(type='torchvision/RandAugment', num_ops=2, magnitude=9),
    dict(type='PILToNumpy', to_bgr=True),
    dict(type='PackInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(
        type='ResizeEdge', scale=256, edge='short', backend='pillow', interpolation='bilinear'),
    dict(type='CenterCrop', crop_size=224),
    dict(type='PackInputs'),
]

train_dataloader = dict(
    batch_size=128,  # x 8 GPUs = 1,024
    num_workers=8,
    persistent_workers=True,
    dataset=dict(
        type='ImageNet',
        data_root=data_root,
        split='train',
        classes=classes,
        pipeline=train_pipeline),
    sampler=dict(type='DefaultSampler', shuffle=True))
val_dataloader = dict(
    batch_size=128,
    num_workers=8,
    persistent_workers=True,
    dataset=dict(
        type='ImageNet',
        data_root=data_root,
        split='val',
        classes=classes,
        pipeline=test_pipeline),
    sampler=dict(type='DefaultSampler', shuffle=False))
val_evaluator = dict(type='Accuracy', topk=(1, 5))
test_dataloader = val_dataloader
test_evaluator = val_evaluator
