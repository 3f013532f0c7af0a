"""Transfer of DINOv2 ViT-S to CIFAR-100, dense; data and schedule of the DeiT-S config.

Our choice throughout; layer decay .75 as is usual for self-supervised weights. Patch 14 becomes
16, as for detection: 196 patch tokens at 224 x 224.
"""

_base_ = '../deit_bias/deit-s-bias_2xb128-100e_cifar100.py'

model = dict(backbone=dict(
    _delete_=True,
    type='mmext.TimmViT',
    model_name='vit_small_patch14_dinov2',
    patch_size=16,
    img_size=224,
    out_type='cls_token',
    key_bias=False,
    drop_path_rate=0.1,
    init_cfg=dict(type='Pretrained', checkpoint='checkpoints/dinov2_vits14_pretrain.pth')))
optim_wrapper = dict(paramwise_cfg=dict(layer_decay_rate=0.75))
