_base_ = [
    '../_base_/models/deit_bias_large_mae.py',
    '../_base_/datasets/imagenet_224_deit.py',
    '../_base_/schedules/imagenet_bs1024_adamw_attention_only.py',
    '../_base_/default_runtime_cls.py',
]

# only the attention modules train, as in the paper; the head keeps MAE's weights
model = dict(backbone=dict(trainable='attn'), head=dict(type='mmext.FrozenLinearClsHead'))
# MAE fine-tunes without repeated augmentation
train_dataloader = dict(
    batch_size=64, sampler=dict(_delete_=True, type='DefaultSampler', shuffle=True))
custom_hooks = [dict(type='mmext.PretrainedHeadHook', checkpoint={{_base_.checkpoint}})]
