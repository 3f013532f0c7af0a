"""Classifies single handwritten digits with a small bias-pruned ViT; about a minute on 2 cores.

Its backbone is the start of digits_mask_rcnn.py.
"""

default_scope = 'mmpretrain'

# 36 patch tokens of 8 x 8 pixels; from the first to the last block 90 % to 10 % of the
# key-value columns are kept, those with the largest learned key bias
model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='mmext.BiasPrunedViT',
        arch=dict(embed_dim=64, depth=4, num_heads=4),
        img_size=48,
        patch_size=8,
        patch_stem='conv',
        pos_init='sincos',
        with_cls_token=False,
        keep_ratio=(.9, .1),
        train_mode='gather',  # the same values as 'mask', faster here
        out_type='avg_featmap',
        # of width 64 the usual .02 is too little: the loss may not fall for many epochs
        init_cfg=dict(type='Xavier', layer='Linear', distribution='uniform')),
    head=dict(type='LinearClsHead', num_classes=10, in_channels=64))

data_preprocessor = dict(mean=[127.5] * 3, std=[64.] * 3, to_rgb=True, num_classes=10)

data_root = 'data/digits/classification'
# 1,438 digits x 3 renderings / batches of 64 = 68 iterations an epoch
epochs = 10
data = dict(
    batch_size=64,
    num_workers=0,
    dataset=dict(
        type='CustomDataset',
        data_root=data_root,
        data_prefix='train',
        classes=list('0123456789'),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='RandomCrop', crop_size=48, padding=6, padding_mode='edge'),
            dict(type='PackInputs')]))
train_dataloader = dict(**data, sampler=dict(type='DefaultSampler', shuffle=True))
val_dataloader = dict(
    **{**data, 'dataset': {
        **data['dataset'],
        'data_prefix': 'val',
        'pipeline': [
            dict(type='LoadImageFromFile'),
            dict(type='Resize', scale=(48, 48)),  # nothing on these; images of others in `predict`
            dict(type='PackInputs')]}},
    sampler=dict(type='DefaultSampler', shuffle=False))
val_evaluator = dict(type='Accuracy', topk=1)
test_dataloader = val_dataloader
test_evaluator = val_evaluator

optim_wrapper = dict(
    optimizer=dict(type='AdamW', lr=2e-3, weight_decay=.05), clip_grad=dict(max_norm=1))
param_scheduler = [
    dict(type='LinearLR', start_factor=.01, end=50, by_epoch=False),
    dict(type='CosineAnnealingLR', T_max=epochs * 68, by_epoch=False)]
train_cfg = dict(by_epoch=True, max_epochs=epochs, val_interval=2)
val_cfg = test_cfg = dict()

default_hooks = dict(
    logger=dict(type='LoggerHook', interval=50),
    checkpoint=dict(type='mmext.SafeCheckpointHook', interval=1, max_keep_ckpts=1),
    artifacts=dict(type='mmext.RunArtifactsHook', num_images=24, columns=8))
visualizer = dict(type='UniversalVisualizer', vis_backends=[dict(type='LocalVisBackend')])
randomness = dict(seed=0)
