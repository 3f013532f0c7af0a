"""``--auto-scale-lr``: the linear scaling rule for all that belongs to the learning rate."""

import os
import sys

from mmengine.config import Config

from .config_check import ConfigError

RATES = ('eta_min', 'eta_max', 'min_value', 'max_value')  # absolute; factors and ratios are not
LENGTHS = ('begin', 'end', 'T_max', 'milestones', 'total_steps')
OTHER_LENGTHS = ('step_size', 'periods', 'restart_weights', 'patience', 'cooldown')


def scale_learning_rate(cfg: Config) -> None:
    """Multiply the rates of a config by images a step / ``auto_scale_lr.base_batch_size``.

    Images a step are batch size x processes x ``accumulative_counts``. Scaled are the optimizer's
    rate and the absolute rates of the schedulers (``eta_min``, ...); what a scheduler counts in
    iterations (warm-up) is made longer or shorter so that it still sees as many images. Weight
    decay, gradient clipping and moving averages stay.

    Raises:
        ConfigError: no base batch size, or a part of the schedule that cannot be scaled.
    """
    base = (cfg.get('auto_scale_lr') or {}).get('base_batch_size')
    if not base:
        raise ConfigError('--auto-scale-lr needs auto_scale_lr=dict(base_batch_size=...) '
                          'in the config.')
    wrapper = cfg.optim_wrapper
    if 'optimizer' not in wrapper or 'lr' not in wrapper.optimizer:
        raise ConfigError('--auto-scale-lr needs one optim_wrapper.optimizer with lr=...; scale '
                          'the rates of several optimizers by hand.')
    cfg.auto_scale_lr.enable = False  # done here, for mmengine knows the optimizer's rate alone
    loader = cfg.train_dataloader
    batch = loader.get('batch_size') or (loader.get('batch_sampler') or {}).get('batch_size')
    if not batch:
        raise ConfigError('--auto-scale-lr needs train_dataloader.batch_size.')
    processes, counts = world_size(cfg), wrapper.get('accumulative_counts', 1)
    ratio = batch * processes * counts / base
    print(f'learning rates x {ratio:g}: {batch} images x {processes} processes x {counts} '
          f'accumulated steps, for a base of {base}', file=sys.stderr)
    if ratio == 1:
        return
    if 'max_iters' in cfg.train_cfg:
        raise ConfigError(
            f'--auto-scale-lr: this run is counted in iterations, {ratio:g} times the base batch '
            'wants its length and schedule changed as well. Set train_cfg.max_iters, the '
            'schedulers and optim_wrapper.optimizer.lr by hand.')
    wrapper.optimizer.lr *= ratio
    schedulers = cfg.get('param_scheduler') or []
    for number, one in enumerate([schedulers] if isinstance(schedulers, dict) else schedulers):
        if 'type' not in one or one.get('param_name', 'lr') != 'lr':
            continue
        if one.type.endswith('Momentum'):
            continue
        for key in RATES:
            if isinstance(one.get(key), (int, float)):
                one[key] *= ratio
        if one.get('by_epoch', True):
            continue
        name = f'param_scheduler[{number}] ({one.type})'
        if counts != 1 or any(key in one for key in OTHER_LENGTHS):
            raise ConfigError(
                f'--auto-scale-lr: {name} counts iterations, which cannot be scaled '
                f'{"with accumulative_counts" if counts != 1 else "for this type"}. Count it in '
                'epochs (by_epoch=True, convert_to_iter_based=True) or scale the rates by hand.')
        for key in LENGTHS:
            value = one.get(key)
            if isinstance(value, int) and value:
                one[key] = max(1, round(value / ratio))
            elif isinstance(value, (list, tuple)):
                one[key] = [max(1, round(step / ratio)) for step in value]


def world_size(cfg: Config) -> int:
    """Processes of this run, as its launcher announces them."""
    variable = {'pytorch': 'WORLD_SIZE', 'slurm': 'SLURM_NTASKS', 'mpi': 'OMPI_COMM_WORLD_SIZE'}
    return int(os.environ.get(variable.get(cfg.get('launcher', 'none'), ''), 1))
