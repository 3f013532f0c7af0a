"""DeiT-B with key bias (query-independent column weight), dense unless keep_ratio says otherwise.

Mixup, CutMix, label smoothing and drop path are DeiT's.
"""

checkpoint = 'https://dl.fbaipublicfiles.com/deit/deit_base_patch16_224-b5f2ef4d.pth'
model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='mmext.BiasPrunedViT',
        arch='deit-base',
        img_size=224,
        out_type='cls_token',
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint=checkpoint)),
    head=dict(
        type='LinearClsHead',
        num_classes=1000,
        in_channels=768,
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original')),
    train_cfg=dict(augments=[dict(type='Mixup', alpha=0.8), dict(type='CutMix', alpha=1.0)]))
