"""ImageNet-1k pre-training as ToST's code: 8 GPUs x 128 = 1,024 images, 400 epochs.

lr 5e-4 x 1,024 / 512 = 1e-3; 5 epochs of warm-up from 1e-6; cosine to 1e-5; no gradient clipping.
No weight decay on one-dimensional parameters, class token and temperatures. The ToST paper itself
states lr 2e-4 at batch 2,048 (configs/tost/README.md). For DMST it is our choice.
"""

# 1,281,167 images / 1,024 = 1,251 iterations an epoch
epochs, warmup = 400, 5
optim_wrapper = dict(
    type='AmpOptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05),
    constructor='mmext.LayerDecayOptimWrapperConstructor',
    paramwise_cfg=dict(layer_decay_rate=1.0))
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=1e-3,  # 1e-6 / 1e-3
        begin=0,
        end=warmup,
        by_epoch=True,
        convert_to_iter_based=True),
    dict(
        type='CosineAnnealingLR',
        eta_min=1e-5,
        begin=warmup,
        end=epochs,
        by_epoch=True,
        convert_to_iter_based=True),
]
train_cfg = dict(by_epoch=True, max_epochs=epochs, val_interval=1)
val_cfg = dict()
test_cfg = dict()
auto_scale_lr = dict(base_batch_size=1024)
