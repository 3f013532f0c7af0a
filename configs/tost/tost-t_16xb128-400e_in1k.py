"""The numbers of the ToST paper instead of its code: 16 GPUs x 128 = 2,048 images, lr 2e-4."""

_base_ = './tost-t_8xb128-400e_in1k.py'

optim_wrapper = dict(optimizer=dict(lr=2e-4))
auto_scale_lr = dict(base_batch_size=2048)
