"""Parameters, gradients and optimizer states shared among the processes (FSDP); add to `_base_`.

One unit per transformer block of ViT-L (12.6 M parameters) and up. Checkpoints are whole and those
of any other run.
"""

runner_type = 'FlexibleRunner'
strategy = dict(
    type='mmext.FSDPStrategy',
    model_wrapper=dict(
        type='MMFullyShardedDataParallel',
        use_orig_params=True,  # blocks hold frozen parameters and, by depth, several rates
        auto_wrap_policy=dict(
            type='torch.distributed.fsdp.wrap.size_based_auto_wrap_policy',
            min_num_params=10_000_000)),
    state_dict_cfg='full')
