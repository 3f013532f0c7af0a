"""Table II, TPUSA: sparse token assignment, subspaces not gated."""

_base_ = './dmst-t_1xb256-ft-200e_cifar10.py'

model = dict(backbone=dict(attn_cfg=dict(sparse_dim='token')))
