"""DeiT-S as the backbone of a dense predictor; no model by itself, experiment configs take it from
`_base_`. Settings are those of configs/vitdet: no class token, positions for 1024², activation
checkpointing, drop path .1.
"""

deit_s = dict(
    type='mmext.BiasPrunedViT',
    arch='deit-small',
    img_size=1024,
    with_cls_token=False,
    out_type='featmap',
    key_bias=False,
    drop_path_rate=0.1,
    with_cp=True,
    init_cfg=dict(
        type='Pretrained',
        checkpoint='https://dl.fbaipublicfiles.com/deit/deit_small_patch16_224-cd65a155.pth'))

# .9 to .1 over the depth, from the classifier configs/deit_bias/deit-s-bias-0.9-0.1_...
deit_s_bias = {
    **deit_s,
    'key_bias': True,
    'keep_ratio': (0.9, 0.1),
    'init_cfg': dict(
        type='Pretrained',
        checkpoint='work_dirs/deit-s-bias-0.9-0.1_8xb128-ft_in1k/epoch_40.pth',
        prefix='backbone.')}
