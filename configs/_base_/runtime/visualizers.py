"""Where scalars go; add to `_base_` and `visualizer = dict(vis_backends=_base_.wandb)`.

TensorBoard writes to the run's folder vis_data; Weights & Biases needs `wandb login` once, or
WANDB_MODE=offline.
"""

tensorboard = [dict(type='LocalVisBackend'), dict(type='TensorboardVisBackend')]
wandb = [
    dict(type='LocalVisBackend'),
    dict(type='WandbVisBackend', init_kwargs=dict(project='mmext')),
]
