"""Memberships as the paper prints them, w_k Z / <w_k Z, 1>: raw instead of our softmax."""

_base_ = './dmst-t_1xb256-200e_cifar10.py'

model = dict(backbone=dict(attn=dict(pi_norm='raw')))
