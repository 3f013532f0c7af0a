"""Mix-ins of configs/_base_/runtime; sharded training against plain data-parallel training."""

import os
import re
import socket
import subprocess
import sys

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import VISBACKENDS

import mmext.registry  # noqa: F401
from mmext.cli.config_check import check_config
from mmext.compat.torch_load import allow_own_checkpoints
from mmext.engine import FSDPStrategy

CONFIG = """
_base_ = {bases}
default_scope = 'mmpretrain'
model = dict(
    type='ImageClassifier',
    backbone=dict(type='mmext.BiasPrunedViT', arch='tiny-test', img_size=32, keep_ratio=(.9, .5)),
    head=dict(type='LinearClsHead', num_classes=10, in_channels=32))
train_dataloader = dict(
    batch_size=4, num_workers=0, sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(type='CustomDataset', data_root={data!r}, data_prefix='train',
                 pipeline=[dict(type='LoadImageFromFile'), dict(type='Resize', scale=32),
                           dict(type='PackInputs')]))
optim_wrapper = dict(
    optimizer=dict(type='SGD', lr=0.1, momentum=0.9), accumulative_counts=2,
    constructor='mmext.LayerDecayOptimWrapperConstructor',
    paramwise_cfg=dict(layer_decay_rate=.5))
train_cfg = dict(by_epoch=False, max_iters=8)
log_processor = dict(by_epoch=False)
env_cfg = dict(dist_cfg=dict(backend='nccl'))
default_hooks = dict(
    checkpoint=dict(type='mmext.SafeCheckpointHook', by_epoch=False, interval=4))
randomness = dict(seed=0)
"""


@pytest.fixture(scope='module')
def digits(digits):
    return digits / 'classification'


def runtime(root_dir, *names):
    return [str(root_dir / 'configs' / '_base_' / 'runtime' / f'{name}.py') for name in names]


def train(root_dir, folder, config, work_dir, *options, processes=1):
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    launcher = ['-m', 'torch.distributed.run', f'--nproc-per-node={processes}',
                f'--master-port={port}'] if processes > 1 else []
    run = subprocess.run(
        [sys.executable, *launcher, root_dir / 'tools' / 'train.py', config, '--work-dir', work_dir,
         '--launcher', 'pytorch' if launcher else 'none', *options], cwd=folder,
        capture_output=True, text=True, env={**os.environ, 'OMP_NUM_THREADS': '1'})
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout + run.stderr


def weights(path):
    allow_own_checkpoints()
    return torch.load(path, weights_only=True)


@pytest.mark.slow
def test_sharded_training_equals_data_parallel_training(root_dir, digits, tmp_path):
    """Two processes, stopped and resumed, whole checkpoints: same weights as DDP without a stop."""
    if torch.cuda.is_available() and torch.cuda.device_count() < 2:
        pytest.skip('needs two GPUs or none')
    ddp, fsdp = tmp_path / 'ddp.py', tmp_path / 'fsdp.py'
    ddp.write_text(CONFIG.format(bases=[], data=str(digits)))
    fsdp.write_text(
        CONFIG.format(bases=runtime(root_dir, 'fsdp'), data=str(digits))
        + 'strategy = dict(model_wrapper=dict(auto_wrap_policy=dict(min_num_params=10_000)))')
    train(root_dir, tmp_path, ddp, 'ddp', processes=2)
    train(root_dir, tmp_path, fsdp, 'fsdp', '--cfg-options', 'train_cfg.max_iters=4', processes=2)
    log = train(root_dir, tmp_path, fsdp, 'fsdp', '--resume', processes=2)
    assert 'resumed epoch: 0, iter: 4' in log
    start = None
    for name in ('iter_4.pth', 'iter_8.pth'):
        want, got = (weights(tmp_path / run / name) for run in ('ddp', 'fsdp'))
        assert got['meta']['iter'] == want['meta']['iter']
        assert got['state_dict'].keys() == want['state_dict'].keys()
        for key, value in want['state_dict'].items():
            torch.testing.assert_close(got['state_dict'][key], value, atol=1e-5, rtol=1e-4)
        if start is not None:
            key = 'backbone.blocks.1.attn.qkv.weight'
            assert (want['state_dict'][key] - start[key]).abs().max() > 1e-4
        start = want['state_dict']


@pytest.mark.slow
def test_moving_average_and_compiled_backbone(root_dir, digits, tmp_path):
    """Compiled without code generation: the same losses as without; the average is saved."""
    log, weight = {}, {}
    for name, hooks in (('plain', '[_base_.ema]'), ('compiled', '[_base_.ema, _base_.compiled]')):
        config = tmp_path / f'{name}.py'
        config.write_text(
            CONFIG.format(bases=runtime(root_dir, 'ema', 'compile'), data=str(digits))
            + f"_base_.compiled['backend'] = 'eager'\ncustom_hooks = {hooks}\n"
              "default_hooks['logger'] = dict(type='LoggerHook', interval=1)\n")
        log[name] = train(root_dir, tmp_path, config, name)
        content = weights(tmp_path / name / 'iter_8.pth')
        weight[name], average = content['state_dict'], content['ema_state_dict']
        # mmengine saves the average as the weights, and what was trained beside it
        assert not torch.equal(weight[name]['head.fc.weight'], average['module.head.fc.weight'])
    assert 'compiling BiasPrunedViT' in log['compiled']
    assert 'compiling' not in log['plain'].split('Iter(train)')[1]
    losses = {name: re.findall(r'loss: ([\d.]+)', text) for name, text in log.items()}
    assert losses['plain'] == losses['compiled'] and len(losses['plain']) == 8
    torch.testing.assert_close(weight['plain'], weight['compiled'], atol=1e-5, rtol=1e-4)


@pytest.mark.usefixtures('mmpretrain_scope')
def test_mixins_name_things_that_exist(root_dir, tmp_path):
    for name in ('fsdp', 'deepspeed', 'compile', 'visualizers', 'ema'):
        config = tmp_path / f'{name}.py'
        extra = dict(
            ema='custom_hooks = [_base_.ema]\n',
            compile='custom_hooks = [_base_.compiled]\n',
            visualizers="visualizer = dict(type='UniversalVisualizer', vis_backends=_base_.wandb)",
        ).get(name, '')
        config.write_text(CONFIG.format(bases=runtime(root_dir, name), data='.') + extra)
        check_config(Config.fromfile(config))
    cfg = Config.fromfile(tmp_path / 'visualizers.py')
    for backend in cfg.tensorboard + cfg.wandb:
        assert VISBACKENDS.get(backend['type']) is not None


def test_strategy_without_gpu_shards_on_the_cpu():
    if torch.cuda.is_available():
        pytest.skip('for machines without GPU')
    strategy = FSDPStrategy(model_wrapper=dict(type='MMFullyShardedDataParallel'))
    assert strategy.model_wrapper['device_id'] == 'cpu' and strategy._is_full_state_dict()
