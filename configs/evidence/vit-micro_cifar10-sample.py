_base_ = './dmst-micro_cifar10-sample.py'

model = dict(backbone=dict(attn=dict(_delete_=True, type='mmext.GatedMHSA', gate='none')))
