_base_ = './vit-ti-bias_8xb128-300e_in100.py'

# the plain ViT: no key bias
model = dict(backbone=dict(key_bias=False))
