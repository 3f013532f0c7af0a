"""Table II, TPUSA: sparse token assignment, subspaces not gated."""

_base_ = './dmst-t_1xb256-200e_cifar10.py'

model = dict(backbone=dict(attn=dict(sparse_dim='token')))
