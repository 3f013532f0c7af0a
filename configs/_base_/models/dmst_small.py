"""DMST-S; as dmst_tiny.py."""

_base_ = './dmst_tiny.py'

model = dict(backbone=dict(arch='small'), head=dict(in_channels=384))
