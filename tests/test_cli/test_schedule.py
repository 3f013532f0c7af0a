"""--auto-scale-lr against the schedule that the same images would have seen."""

import copy

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import PARAM_SCHEDULERS, init_default_scope

from mmext.cli.config_check import ConfigError
from mmext.cli.schedule import scale_learning_rate

IMAGES = 1280
BASE = dict(
    launcher='none', auto_scale_lr=dict(base_batch_size=64), train_cfg=dict(max_epochs=10),
    train_dataloader=dict(batch_size=64),
    optim_wrapper=dict(optimizer=dict(type='SGD', lr=.1)),
    param_scheduler=[
        dict(type='LinearLR', start_factor=.001, by_epoch=False, begin=0, end=40),
        dict(type='CosineAnnealingLR', eta_min=.01, begin=2, end=10, T_max=8, by_epoch=True,
             convert_to_iter_based=True)])


def rates(cfg):
    """Learning rate over the run, as mmengine computes it; one entry an iteration."""
    init_default_scope('mmengine')
    model = torch.nn.Linear(1, 1)
    wrapper = build_optim_wrapper(model, copy.deepcopy(cfg.optim_wrapper))
    epoch = IMAGES // cfg.train_dataloader.batch_size
    schedulers = []
    for one in copy.deepcopy(cfg.param_scheduler):
        convert = one.pop('convert_to_iter_based', False)
        build = PARAM_SCHEDULERS.get(one.pop('type'))
        schedulers.append(build.build_iter_from_epoch(wrapper, epoch_length=epoch, **one)
                          if convert else build(wrapper, **one))
    out = []
    for _ in range(10 * epoch):
        out.append(wrapper.get_lr()['lr'][0])
        wrapper.optimizer.step()
        for one in schedulers:
            one.step()
    return torch.tensor(out)


@pytest.mark.parametrize('batch', [16, 32, 128])
def test_the_whole_curve_scales(batch):
    cfg, base = Config(copy.deepcopy(BASE)), Config(copy.deepcopy(BASE))
    cfg.train_dataloader.batch_size = batch
    scale_learning_rate(cfg)
    assert not cfg.auto_scale_lr.enable  # mmengine does not do it once more
    ratio = batch / 64
    found, want = rates(cfg), ratio * rates(base)
    if ratio > 1:  # at the same place in the data
        want = want[::int(ratio)]
    else:
        found = found[::int(1 / ratio)]
    warm = int(40 / max(ratio, 1))
    assert (found[warm:] / want[warm:] - 1).abs().max() < .01
    assert found[-1] < ratio * .0101 and cfg.param_scheduler[0]['end'] == 40 / ratio


@pytest.mark.parametrize('processes, batch, counts', [(1, 16, 16), (2, 32, 4), (4, 64, 1)])
def test_processes_and_accumulated_steps_count(monkeypatch, capsys, processes, batch, counts):
    monkeypatch.setenv('WORLD_SIZE', str(processes))
    cfg = Config(copy.deepcopy(BASE))
    cfg.launcher, cfg.train_dataloader.batch_size = 'pytorch', batch
    cfg.optim_wrapper.accumulative_counts = counts
    cfg.param_scheduler = cfg.param_scheduler[1:]
    scale_learning_rate(cfg)
    assert cfg.optim_wrapper.optimizer.lr == pytest.approx(.4)
    assert cfg.param_scheduler[0].eta_min == pytest.approx(.04)
    assert 'learning rates x 4:' in capsys.readouterr().err


@pytest.mark.parametrize('change, message', [
    (dict(auto_scale_lr=dict()), 'needs auto_scale_lr=dict'),
    (dict(train_cfg=dict(by_epoch=False, max_iters=100)), 'counted in iterations'),
    (dict(optim_wrapper=dict(optimizer=dict(type='SGD', lr=.1), accumulative_counts=4)),
     r'param_scheduler\[0\] \(LinearLR\) counts iterations.*accumulative_counts'),
    (dict(optim_wrapper=dict(_delete_=True, a=dict(optimizer=dict(lr=1)))), 'several optimizers'),
    (dict(param_scheduler=[dict(type='StepLR', by_epoch=False, step_size=30)]), 'StepLR')])
def test_what_cannot_be_scaled_is_refused(change, message):
    cfg = Config(copy.deepcopy({**BASE, **change}))
    cfg.train_dataloader.batch_size = 32
    with pytest.raises(ConfigError, match=message):
        scale_learning_rate(cfg)
    base = Config(copy.deepcopy({**BASE, **change}))
    if 'train_cfg' in change:  # at the base batch nothing is to be scaled
        scale_learning_rate(base)


def test_every_config_scales_or_says_why_not(root_dir):
    seen = set()
    for path in sorted((root_dir / 'configs' / '_base_' / 'schedules').glob('*.py')):
        cfg = Config.fromfile(path)
        cfg.train_dataloader = dict(batch_size=cfg.auto_scale_lr.base_batch_size // 2)
        try:
            lr = cfg.optim_wrapper.optimizer.lr
            scale_learning_rate(cfg)
            assert cfg.optim_wrapper.optimizer.lr == pytest.approx(
                lr / 2 * cfg.optim_wrapper.get('accumulative_counts', 1))
            seen.add('scaled')
        except ConfigError as error:
            assert 'counts iterations' in str(error) or 'counted in' in str(error)
    assert 'scaled' in seen
