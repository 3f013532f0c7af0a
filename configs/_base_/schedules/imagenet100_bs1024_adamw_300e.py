"""ImageNet-100 from scratch (Table 5 of the paper), 8 GPUs x 128 = 1,024 images.

From the paper: 300 epochs, AdamW, weight decay .1, cosine, 5 epochs of linear warm-up from .033
of the rate, gradients clipped to norm 1. Our choice: lr 1e-3 (DeiT's rule 5e-4 x batch / 512; worth
a sweep of 5e-4, 1e-3, 3e-3) and a cosine down to 0, as torchvision's references have it.
"""

epochs, warmup = 300, 5
optim_wrapper = dict(
    type='AmpOptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, betas=(0.9, 0.999), weight_decay=0.1),
    constructor='mmext.LayerDecayOptimWrapperConstructor',
    paramwise_cfg=dict(layer_decay_rate=1.0),
    clip_grad=dict(max_norm=1.0))
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=0.033,
        begin=0,
        end=warmup,
        by_epoch=True,
        convert_to_iter_based=True),
    dict(
        type='CosineAnnealingLR',
        eta_min=0.0,
        begin=warmup,
        end=epochs,
        by_epoch=True,
        convert_to_iter_based=True),
]
train_cfg = dict(by_epoch=True, max_epochs=epochs, val_interval=1)
val_cfg = dict()
test_cfg = dict()
auto_scale_lr = dict(base_batch_size=1024)
