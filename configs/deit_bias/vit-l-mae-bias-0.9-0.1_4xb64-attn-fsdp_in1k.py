"""The same with parameters and optimizer states shared among the GPUs."""

_base_ = ['./vit-l-mae-bias-0.9-0.1_4xb64-attn_in1k.py', '../_base_/runtime/fsdp.py']

optim_wrapper = dict(use_fsdp=True)  # the scaler of the loss knows about the shards
