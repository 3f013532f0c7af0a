"""ViT-L of MAE, fine-tuned there on ImageNet-1k, with key bias: patch tokens are averaged, then
normalized (fc_norm). Mixup, CutMix, label smoothing and drop path are those of MAE's fine-tuning.
"""

checkpoint = 'https://dl.fbaipublicfiles.com/mae/finetune/mae_finetuned_vit_large.pth'
model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='mmext.BiasPrunedViT',
        arch='vit-large',
        img_size=224,
        out_type='avg_featmap',
        fc_norm=True,
        drop_path_rate=0.2,
        init_cfg=dict(type='Pretrained', checkpoint=checkpoint)),
    head=dict(
        type='LinearClsHead',
        num_classes=1000,
        in_channels=1024,
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original')),
    train_cfg=dict(augments=[dict(type='Mixup', alpha=0.8), dict(type='CutMix', alpha=1.0)]))
