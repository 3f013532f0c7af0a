"""As ..._lsj-100e_coco.py with the schedule counted in iterations, as ViTDet counts.

184,375 iterations x 64 images / 118,000 = 100 epochs; the same images at batch 16:
184,375 x 64 / 16 = 737,500; steps 163,889 x 4 = 655,556 and 177,546 x 4 = 710,184.
"""

_base_ = './mask-rcnn_deit-s-bias-0.9-0.1_sfp_lsj-100e_coco.py'

max_iters = 737500
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=1000),
    dict(
        type='MultiStepLR',
        begin=0,
        end=max_iters,
        by_epoch=False,
        milestones=[655556, 710184],
        gamma=0.1),
]
train_cfg = dict(
    _delete_=True, type='IterBasedTrainLoop', max_iters=max_iters, val_interval=73750)
train_dataloader = dict(sampler=dict(type='InfiniteSampler', shuffle=True))
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=7375))
log_processor = dict(by_epoch=False)
