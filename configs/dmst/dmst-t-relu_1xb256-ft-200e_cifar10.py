"""Table III: the gate's activation is a ReLU instead of the soft threshold."""

_base_ = './dmst-t_1xb256-ft-200e_cifar10.py'

model = dict(backbone=dict(attn_cfg=dict(gate_act='relu')))
