"""digits_mask_rcnn.py on a narrow body of DINOv2's kind: class token, four registers, layer scale.

DINOv2's own weights are 384 wide and more; this body is trained from scratch.
"""

_base_ = './digits_mask_rcnn.py'

model = dict(backbone=dict(
    _delete_=True,
    type='mmext.TimmViT',
    model_name='vit_small_patch14_reg4_dinov2',
    model_args=dict(embed_dim=64, depth=4, num_heads=4, init_values=1.),
    img_size=128,
    patch_size=8,
    keep_ratio=(.9, .1),
    train_mode='gather',
    out_type='featmap',
    final_norm=True))
