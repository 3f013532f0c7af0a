"""MAE fine-tuned ViT-L: the attention modules (key bias included) train on; ImageNet-1k.

From the paper: attention modules only, AdamW, cosine, no warm-up, layer-wise decay, weight decay,
MAE's fine-tuning augmentation, 4 GPUs. The numbers are our choice: 10 epochs, lr 1e-4, layer decay
.75 and weight decay .05 (MAE's own), minimum 1e-6 (MAE's own). What is frozen stands in the model.
"""

optim_wrapper = dict(
    type='AmpOptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05),
    constructor='mmext.LayerDecayOptimWrapperConstructor',
    paramwise_cfg=dict(layer_decay_rate=0.75),
    accumulative_counts=4)  # 4 GPUs x 64 x 4 = 1,024 images a step
param_scheduler = [
    dict(
        type='CosineAnnealingLR',
        eta_min_ratio=0.01,  # of every layer's own rate: 1e-6 at the last
        begin=0,
        end=10,
        by_epoch=True,
        convert_to_iter_based=True),
]
train_cfg = dict(by_epoch=True, max_epochs=10, val_interval=1)
val_cfg = dict()
test_cfg = dict()
auto_scale_lr = dict(base_batch_size=1024)
