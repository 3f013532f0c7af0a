"""ToST-T: token statistics self-attention; training options are in the configs that use it."""

_base_ = './dmst_tiny.py'

model = dict(
    backbone=dict(type='mmext.ToST', attn=dict(_delete_=True, type='mmext.TSSA')))
