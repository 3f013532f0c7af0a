"""ViT-L of MAE, fine-tuned there on ImageNet-1k, with key bias: patch tokens are averaged, then
normalized (fc_norm). Mixup, CutMix, label smoothing and drop path are those of MAE's fine-tuning.
"""

_base_ = './deit_bias_tiny.py'

checkpoint = 'https://dl.fbaipublicfiles.com/mae/finetune/mae_finetuned_vit_large.pth'
model = dict(
    backbone=dict(
        arch='vit-large',
        out_type='avg_featmap',
        fc_norm=True,
        drop_path_rate=0.2,
        init_cfg=dict(checkpoint=checkpoint)),
    head=dict(in_channels=1024))
