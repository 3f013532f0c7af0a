"""80,000 iterations at batch 4 GPUs x 4 = 16, AdamW with layer-wise decay, mixed precision.

Our choice: length, crop and polynomial decay are the usual ones of semantic FPN on ADE20K; rate,
weight decay and layer decay those of our detectors.
"""

# 80,000 x 16 / 20,210 images = 63 epochs of ADE20K; / 118,287 = 10.8 epochs of COCO-Stuff
max_iters = 80000
optim_wrapper = dict(
    type='AmpOptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.1),
    constructor='mmext.LayerDecayOptimWrapperConstructor',
    paramwise_cfg=dict(layer_decay_rate=0.7))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=1500),
    dict(
        type='PolyLR', power=0.9, eta_min=0., by_epoch=False, begin=1500, end=max_iters),
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=8000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
auto_scale_lr = dict(base_batch_size=16)
