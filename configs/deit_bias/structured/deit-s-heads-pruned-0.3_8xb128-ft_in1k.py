"""DeiT-S without 30 % of its channels (heads-pruned), recipe of the bias-pruned models.

First write the model:
    python tools/analysis_tools/structured_pruning.py deit_small_patch16_224 \\
        --variant heads-pruned --checkpoint deit_small_patch16_224-cd65a155.pth \\
        --out work_dirs/structured/deit-s-heads-pruned.pth
"""

_base_ = '../deit-s-bias_8xb128-ft_in1k.py'

checkpoint = 'work_dirs/structured/deit-s-heads-pruned.pth'
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmext.StructuredPrunedViT',
        checkpoint=checkpoint,
        drop_path_rate=0.1),
    head=dict(in_channels=268))  # floor(.7 x 384)
custom_hooks = [dict(type='mmext.PretrainedHeadHook', checkpoint=checkpoint)]
