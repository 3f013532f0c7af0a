_base_ = [
    '../_base_/models/deit_bias_tiny.py',
    '../_base_/datasets/imagenet_224_deit.py',
    '../_base_/schedules/imagenet_bs1024_adamw_finetune.py',
    '../_base_/default_runtime_cls.py',
]

custom_hooks = [dict(type='mmext.PretrainedHeadHook', checkpoint={{_base_.checkpoint}})]
