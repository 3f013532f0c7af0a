"""DeepSpeed ZeRO-2 with fp16; add to `_base_`. Needs deepspeed and its optimizer wrapper:
`optim_wrapper = dict(type='DeepSpeedOptimWrapper')`, without `accumulative_counts`.

Not tried here: DeepSpeed needs GPUs.
"""

runner_type = 'FlexibleRunner'
strategy = dict(
    type='DeepSpeedStrategy',
    fp16=dict(enabled=True, initial_scale_power=16),
    inputs_to_half=['inputs'],
    zero_optimization=dict(
        stage=2,
        allgather_partitions=True,
        reduce_scatter=True,
        overlap_comm=True,
        contiguous_gradients=True))
