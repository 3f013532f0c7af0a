"""Fine-tunes a pre-trained ViT-S with key bias on 5,000 CIFAR-10 images; a quarter of an hour.

26 tokens (80 pixels, patch 16, class token), nothing pruned. The data are folders train/ and test/
with one folder of images per class.
"""

default_scope = 'mmpretrain'

model = dict(
    type='ImageClassifier',
    data_preprocessor=dict(
        mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], to_rgb=True, num_classes=10),
    backbone=dict(
        type='mmext.BiasPrunedViT',
        arch='deit-small',
        img_size=80,
        keep_ratio=None,
        keep_prefix=False,  # as the results so far were measured
        init_cfg=dict(
            type='Pretrained', checkpoint='weights/vit_small_patch16_224_pretrained.safetensors')),
    head=dict(type='LinearClsHead', num_classes=10, in_channels=384))

size = 80
data_root = 'data/cifar10_sample'
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='RandomCrop', crop_size=32, padding=4),
    dict(type='RandomFlip', prob=.5, direction='horizontal'),
    dict(type='Resize', scale=(size, size), interpolation='bicubic'),
    dict(type='PackInputs')]
test_pipeline = [train_pipeline[0], *train_pipeline[3:]]
train_dataloader = dict(
    batch_size=32,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(type='CustomDataset', data_root=data_root, data_prefix='train',
                 pipeline=train_pipeline))
val_dataloader = dict(
    batch_size=50,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(type='CustomDataset', data_root=data_root, data_prefix='test',
                 pipeline=test_pipeline))
val_evaluator = dict(type='Accuracy', topk=1)
test_dataloader = val_dataloader
test_evaluator = val_evaluator

# 5,000 images / 32 = 157 iterations an epoch; what is not pre-trained learns ten times as fast
iters = 2 * 157
optim_wrapper = dict(
    optimizer=dict(type='AdamW', lr=5e-5, weight_decay=.05),
    paramwise_cfg=dict(
        norm_decay_mult=0, bias_decay_mult=0,
        custom_keys=dict(key_bias=dict(lr_mult=10), head=dict(lr_mult=10))),
    clip_grad=dict(max_norm=1))
param_scheduler = [
    dict(type='LinearLR', start_factor=.05, end=20, by_epoch=False),
    dict(type='CosineAnnealingLR', T_max=iters, by_epoch=False)]
train_cfg = dict(by_epoch=True, max_epochs=2, val_interval=1)
val_cfg = dict()
test_cfg = dict()

default_hooks = dict(
    logger=dict(type='LoggerHook', interval=20),
    checkpoint=dict(type='CheckpointHook', interval=1, max_keep_ckpts=1, save_optimizer=False))
custom_hooks = [dict(type='mmext.RunArtifactsHook', num_images=20, columns=5)]
randomness = dict(seed=0)
