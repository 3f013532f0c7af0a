"""Transfer of DeiT to CIFAR: 2 GPUs x 128 = 256 images. The paper has no such experiment: all
numbers are our choice, the recipe of the ImageNet fine-tuning (no warm-up, cosine) made longer."""

# 50,000 images / 256 = 196 iterations an epoch
epochs = 100
optim_wrapper = dict(
    type='AmpOptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05),
    constructor='mmext.LayerDecayOptimWrapperConstructor',
    paramwise_cfg=dict(layer_decay_rate=1.0))
param_scheduler = [
    dict(
        type='CosineAnnealingLR',
        eta_min=1e-6,
        begin=0,
        end=epochs,
        by_epoch=True,
        convert_to_iter_based=True),
]
train_cfg = dict(by_epoch=True, max_epochs=epochs, val_interval=1)
val_cfg = dict()
test_cfg = dict()
auto_scale_lr = dict(base_batch_size=256)
