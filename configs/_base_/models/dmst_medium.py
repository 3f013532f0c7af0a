"""DMST-M; as dmst_tiny.py."""

_base_ = './dmst_tiny.py'

model = dict(backbone=dict(arch='medium'), head=dict(in_channels=512))
