"""Running configs that were written for GPUs on a machine without one."""

import os
import subprocess
import warnings

import torch
import torch.distributed as dist


def has_accelerator() -> bool:
    """Whether mmengine would place the model on something other than the CPU."""
    from mmengine.device import get_device
    return get_device() != 'cpu'


def adapt_config(cfg) -> None:
    """Change what cannot work on the CPU in ``cfg`` in place; nothing where there is a GPU.

    Mixed precision becomes plain precision with one warning, data-parallel training uses gloo
    and no device ids.
    """
    if has_accelerator():
        return
    wrapper = cfg.get('optim_wrapper')
    if wrapper and str(wrapper.get('type', '')).split('.')[-1] == 'AmpOptimWrapper':
        warnings.warn(
            'There is no GPU: mixed precision (AmpOptimWrapper) is replaced by plain precision.',
            stacklevel=2)
        wrapper.type = 'OptimWrapper'
        for key in ('loss_scale', 'dtype', 'use_fsdp'):
            wrapper.pop(key, None)
    if cfg.get('launcher', 'none') != 'none':
        if cfg.get('model_wrapper_cfg') is None:
            cfg.model_wrapper_cfg = dict(
                type='MMDistributedDataParallel',
                broadcast_buffers=False,
                find_unused_parameters=cfg.get('find_unused_parameters', False))
        if str(cfg.model_wrapper_cfg.get('type', '')).endswith('DistributedDataParallel'):
            cfg.model_wrapper_cfg.device_ids = None


def init_process_group(launcher: str) -> None:
    """Open the gloo group that mmengine's own launcher code cannot open without CUDA.

    Args:
        launcher: 'none', 'pytorch' (variables of torchrun) or 'slurm'.
    """
    if launcher == 'none' or has_accelerator() or dist.is_initialized():
        return
    if launcher == 'slurm':
        hosts = os.environ['SLURM_NODELIST']
        os.environ.setdefault(
            'MASTER_ADDR', subprocess.getoutput(f'scontrol show hostname {hosts} | head -n1'))
        os.environ.setdefault('MASTER_PORT', '29500')
        os.environ['WORLD_SIZE'] = os.environ['SLURM_NTASKS']
        os.environ['RANK'] = os.environ['SLURM_PROCID']
        os.environ['LOCAL_RANK'] = os.environ.get('SLURM_LOCALID', '0')
    elif launcher != 'pytorch':
        raise ValueError(
            f"--launcher {launcher} needs GPUs; on the CPU use 'none', 'pytorch' or 'slurm'.")
    if torch.get_num_threads() > 1 and 'OMP_NUM_THREADS' not in os.environ:
        torch.set_num_threads(1)  # the processes share the cores
    dist.init_process_group('gloo')
