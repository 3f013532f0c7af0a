"""Small data sets from scratch: one GPU x 256 images, 200 epochs. Everything here is our choice.

The DMST paper does not say whether its ablations (Tables II and III) start from scratch. lr by
the pre-training rule, 5e-4 x 256 / 512 = 2.5e-4, with its weight decay, warm-up and cosine; plain
cross-entropy and the augmentation of the fine-tuning configs.
"""

epochs, warmup = 200, 5
optim_wrapper = dict(
    type='AmpOptimWrapper',
    optimizer=dict(type='AdamW', lr=2.5e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05),
    constructor='mmext.LayerDecayOptimWrapperConstructor',
    paramwise_cfg=dict(layer_decay_rate=1.0))
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=4e-3,  # 1e-6 / 2.5e-4
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
auto_scale_lr = dict(base_batch_size=256)
