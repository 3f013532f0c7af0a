"""Fine-tuning as ToST's finetune.py: one GPU x 256 images, 200 epochs.

AdamW, lr 1e-4, weight decay .01 on everything, cosine over the epochs, AMP, plain cross-entropy,
no drop path. ToST reports the best test accuracy; `save_best` keeps that checkpoint.
"""

epochs = 200
optim_wrapper = dict(
    type='AmpOptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01))
param_scheduler = dict(type='CosineAnnealingLR', T_max=epochs, by_epoch=True)
train_cfg = dict(by_epoch=True, max_epochs=epochs, val_interval=1)
val_cfg = dict()
test_cfg = dict()
auto_scale_lr = dict(base_batch_size=256)
