"""DMST-T with the memberships as the paper prints them, w_k Z / <w_k Z, 1>: raw, no softmax.

Softmax over the heads, the default everywhere else, is our departure.
"""

_base_ = './dmst-t_8xb128-400e_in1k.py'

model = dict(backbone=dict(attn=dict(pi_norm='raw')))
