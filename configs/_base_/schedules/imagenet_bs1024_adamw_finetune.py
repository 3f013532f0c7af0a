"""Fine-tuning of official DeiT checkpoints on ImageNet-1k, 8 GPUs x 128 = 1,024 images.

From the paper: whole network, AdamW, cosine, no warm-up, cool-down epochs; the same recipe dense
and pruned. Everything with a number is our choice, the paper leaves it open: 30 epochs, lr 1e-4
(worth a sweep of 5e-5, 1e-4, 2e-4), minimum 1e-6, weight decay .05, and cool-down taken as DeiT's
default of 10 epochs at the minimum (DeiT's own loop never runs them). No EMA.
"""

# 1,281,167 images / 1,024 = 1,251 iterations an epoch; 30 x cosine + 10 x 1e-6
cosine_epochs, cooldown_epochs = 30, 10
optim_wrapper = dict(
    type='AmpOptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05),
    constructor='mmext.LayerDecayOptimWrapperConstructor',
    paramwise_cfg=dict(layer_decay_rate=1.0))
param_scheduler = [
    dict(
        type='CosineAnnealingLR',
        eta_min=1e-6,
        begin=0,
        end=cosine_epochs,
        by_epoch=True,
        convert_to_iter_based=True),
    # after its end the rate stays where it is: cool-down
]
train_cfg = dict(by_epoch=True, max_epochs=cosine_epochs + cooldown_epochs, val_interval=1)
val_cfg = dict()
test_cfg = dict()
auto_scale_lr = dict(base_batch_size=1024)
