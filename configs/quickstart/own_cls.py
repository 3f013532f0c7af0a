"""A small classifier for own folders of images, from nothing: the start of docs/own_data.md.

digits_cls.py on images of 96 pixels, counted in iterations, so that it takes as long for few images
as for many.
"""

_base_ = './digits_cls.py'

model = dict(backbone=dict(img_size=96))
iters = 600
train_dataloader = dict(sampler=dict(type='InfiniteSampler', shuffle=True))
param_scheduler = [
    dict(type='LinearLR', start_factor=.01, end=50, by_epoch=False),
    dict(type='CosineAnnealingLR', T_max=iters, by_epoch=False)]
train_cfg = dict(_delete_=True, by_epoch=False, max_iters=iters, val_interval=100)
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=100, save_best='auto'))
log_processor = dict(by_epoch=False)
