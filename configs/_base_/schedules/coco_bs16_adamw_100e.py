"""100 epochs of COCO, AdamW with layer-wise decay, mixed precision; batch 4 GPUs x 4 = 16.

From the paper: AdamW, AMP, layer-wise decay, 100 epochs, global batch 16, "ViTDet protocol". From
ViTDet: lr 1e-4, betas .9/.999, weight decay .1, rate / 10 at 88.9 % and 96.3 % of the schedule
(163,889 and 177,546 of 184,375 iterations), linear warm-up from .001.
Our choice: lr 1e-4 is ViTDet's at batch 64 and is not scaled down to batch 16 (linear scaling
would give 2.5e-5, worth a try); layer decay .7 is ViTDet's for ViT-B; warm-up of 1,000 iterations
is its 250 times 64 / 16; the steps are rounded to whole epochs.
"""

# 117,266 images / 16 = 7,330 iterations an epoch
max_epochs = 100
optim_wrapper = dict(
    type='AmpOptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.1),
    constructor='mmext.LayerDecayOptimWrapperConstructor',
    paramwise_cfg=dict(layer_decay_rate=0.7))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=1000),
    dict(
        type='MultiStepLR',
        begin=0,
        end=max_epochs,
        by_epoch=True,
        milestones=[89, 96],
        gamma=0.1),
]
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=max_epochs, val_interval=10)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
auto_scale_lr = dict(base_batch_size=16)
