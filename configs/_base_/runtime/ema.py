"""Moving average of the weights; add to `_base_` and `custom_hooks = [..., _base_.ema]`.

Validation, tests and the published weights then use the average (DeiT's decay, .99996).
"""

ema = dict(
    type='EMAHook', momentum=4e-5, ema_type='ExponentialMovingAverage', update_buffers=True,
    priority='ABOVE_NORMAL')
