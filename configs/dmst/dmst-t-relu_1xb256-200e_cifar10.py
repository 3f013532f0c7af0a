"""Table III: the gate's activation is a ReLU instead of the soft threshold."""

_base_ = './dmst-t_1xb256-200e_cifar10.py'

model = dict(backbone=dict(attn=dict(gate_act='relu')))
