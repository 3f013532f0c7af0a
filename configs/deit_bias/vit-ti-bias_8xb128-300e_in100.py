_base_ = [
    '../_base_/models/deit_bias_tiny.py',
    '../_base_/datasets/imagenet100_224.py',
    '../_base_/schedules/imagenet100_bs1024_adamw_300e.py',
    '../_base_/default_runtime_cls.py',
]

# Mixup .2, CutMix 1.0 and smoothing .1 are the paper's; drop path .1 and the sizes of Ti and S,
# which it does not name, are DeiT's: our choice
model = dict(
    backbone=dict(init_cfg=None),
    head=dict(num_classes=100),
    train_cfg=dict(augments=[dict(type='Mixup', alpha=0.2), dict(type='CutMix', alpha=1.0)]))
