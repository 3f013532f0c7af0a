_base_ = './vit-s-bias_8xb128-300e_in100.py'

# the last 8 blocks attend by key bias alone and have no query and key weights
model = dict(backbone=dict(num_qk_free=8))
