"""Oxford-IIIT Pets at 224 pixels with the fine-tuning augmentation of ToST (official finetune.py).

torchvision's transforms, as there: random resized crop, flip, RandAugment(2, 14), no erasing;
test images are squeezed to 224 x 224.
"""

data_root = 'data/Oxford-IIIT_Pets'
data_preprocessor = dict(
    num_classes=37,
    mean=[123.675, 116.28, 103.53],
    std=[58.395, 57.12, 57.375],
    to_rgb=False)  # images are RGB from NumpyToPIL on

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='NumpyToPIL', to_rgb=True),
    dict(type='torchvision/RandomResizedCrop', size=224),
    dict(type='torchvision/RandomHorizontalFlip', p=0.5),
    dict(type='torchvision/RandAugment', num_ops=2, magnitude=14),
    dict(type='PILToNumpy'),
    dict(type='PackInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='NumpyToPIL', to_rgb=True),
    dict(type='torchvision/Resize', size=(224, 224)),
    dict(type='PILToNumpy'),
    dict(type='PackInputs'),
]

train_dataloader = dict(
    batch_size=256,  # on one GPU
    num_workers=8,
    persistent_workers=True,
    dataset=dict(
        type='OxfordIIITPet',
        data_root=data_root,
        split='trainval',
        pipeline=train_pipeline),
    sampler=dict(type='DefaultSampler', shuffle=True))
val_dataloader = dict(
    batch_size=256,
    num_workers=8,
    persistent_workers=True,
    dataset=dict(
        type='OxfordIIITPet',
        data_root=data_root,
        split='test',
        pipeline=test_pipeline),
    sampler=dict(type='DefaultSampler', shuffle=False))
val_evaluator = dict(type='Accuracy', topk=(1, ))
test_dataloader = val_dataloader
test_evaluator = val_evaluator
