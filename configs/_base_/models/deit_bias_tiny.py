"""DeiT-Ti with key bias (query-independent column weight), dense unless keep_ratio says otherwise.

Mixup, CutMix, label smoothing and drop path are DeiT's. Other sizes: the files beside this one.
"""

checkpoint = 'https://dl.fbaipublicfiles.com/deit/deit_tiny_patch16_224-a1311bcf.pth'
model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='mmext.BiasPrunedViT',
        arch='deit-tiny',
        img_size=224,
        out_type='cls_token',
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint=checkpoint)),
    head=dict(
        type='LinearClsHead',
        num_classes=1000,
        in_channels=192,
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original')),
    train_cfg=dict(augments=[dict(type='Mixup', alpha=0.8), dict(type='CutMix', alpha=1.0)]))
