"""Table II, TPSUSA: sparse token assignment and gated subspaces."""

_base_ = './dmst-t_1xb256-200e_svhn.py'

model = dict(backbone=dict(attn=dict(sparse_dim='both')))
