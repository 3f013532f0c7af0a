"""DMST-T: ToST with DMSA as its attention; training options are in the configs that use it."""

model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='mmext.DMST', arch='tiny', attn=dict(type='mmext.DMSA'), out_type='cls_token'),
    head=dict(type='LinearClsHead', num_classes=1000, in_channels=192))
