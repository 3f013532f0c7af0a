"""Divergence ends a run, and an interrupted run continues as if nothing had happened."""

import json
import math
import random

import numpy as np
import pytest
import torch
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch import nn
from torch.utils.data import Dataset

from mmext.checkpoints.safe_reader import read_checkpoint
from mmext.engine.hooks import Diverged


class Noise(Dataset):
    """Every sample draws from all three generators, as augmentation does."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        noise = random.random() + np.random.rand() + torch.rand(8)
        return dict(inputs=index + noise)


class Model(BaseModel):

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 1)
        self.register_buffer('smallest', torch.tensor(math.inf))  # infinite by intention

    def forward(self, inputs, mode='tensor'):
        out = self.fc(nn.functional.dropout(torch.stack(inputs), .5, self.training))
        return dict(loss=(out ** 2).mean()) if mode == 'loss' else [out]


class Score(BaseMetric):
    """Of the weights alone; rises and falls, and draws random numbers on the way."""

    model = None

    def process(self, data_batch, data_samples):
        random.random(), np.random.rand(), torch.rand(1)
        self.results.append(0)

    def compute_metrics(self, results):
        return dict(score=math.sin(1e4 * float(self.model.fc.weight.sum())))


class Stop(Exception):
    pass


class StopIn(Hook):
    """Ends the process in effect: at the start of a validation, or of an iteration."""

    def __init__(self, where, at):
        self.where, self.at = where, at

    def before_val(self, runner):
        if self.where == 'val' and runner.iter == self.at:
            raise Stop

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if self.where == 'iter' and runner.iter == self.at:
            raise Stop


def run(folder, by_epoch, stop=None, resume=False, lr=1e-4, wrapper=None, **checkpoint):
    loader = dict(
        batch_size=2, num_workers=0, dataset=Noise(),
        sampler=dict(type='DefaultSampler' if by_epoch else 'InfiniteSampler', shuffle=True))
    torch.manual_seed(0)
    model = Model()
    metric = Score()
    metric.model = model
    # 4 epochs of 3 iterations, validated after each but the third
    length = dict(max_epochs=4) if by_epoch else dict(max_iters=12)
    hook = dict(type='mmext.SafeCheckpointHook', by_epoch=by_epoch, interval=1 if by_epoch else 3,
                save_best='score', rule='greater', max_keep_ckpts=2)
    runner = Runner(
        model, str(folder), train_dataloader=loader, val_dataloader=dict(
            batch_size=3, num_workers=0, dataset=Noise(), sampler=dict(type='DefaultSampler',
                                                                      shuffle=False)),
        val_cfg=dict(), val_evaluator=[metric], default_scope='mmengine', resume=resume,
        train_cfg=dict(by_epoch=by_epoch, val_interval=2 if by_epoch else 6, **length),
        optim_wrapper=wrapper or dict(optimizer=dict(type='SGD', lr=lr, momentum=.9)),
        default_hooks=dict(checkpoint=hook | checkpoint), randomness=dict(seed=3),
        custom_hooks=[dict(type='mmext.RunArtifactsHook'), *([StopIn(*stop)] if stop else [])],
        experiment_name=f'{folder}{resume}')
    if stop:
        with pytest.raises(Stop):
            runner.train()
    else:
        runner.train()
    return runner


def outcome(folder, last):
    content = read_checkpoint(str(folder / last))
    note = json.loads((folder / 'metrics.json').read_text())
    losses = content['message_hub']['log_scalars']['train/loss'].data[0].tolist()
    best = sorted(path.name for path in folder.glob('best*'))
    return losses, content['state_dict']['fc.weight'].tolist(), best, note['history'], note['best']


@pytest.mark.parametrize('by_epoch', [True, False])
@pytest.mark.parametrize('stop', [('iter', 7), ('val', 12), *(
    pytest.param(stop, marks=pytest.mark.slow)
    for stop in [('iter', 4), ('iter', 6), ('iter', 10), ('val', 6)])])
def test_an_interrupted_run_equals_an_uninterrupted_one(tmp_path, by_epoch, stop):
    """Augmentation, dropout, validation with random numbers in it; weights, losses, metrics."""
    last = 'epoch_4.pth' if by_epoch else 'iter_12.pth'
    run(tmp_path / 'whole', by_epoch)
    run(tmp_path / 'parts', by_epoch, stop)
    torch.rand(7), random.random()  # the state of a new process is another one
    run(tmp_path / 'parts', by_epoch, resume=True)
    whole, parts = (outcome(tmp_path / name, last) for name in ('whole', 'parts'))
    assert [entry['iter'] for entry in whole[3]] == [6, 12]
    assert parts == whole
    assert json.loads((tmp_path / 'parts' / 'metrics.json').read_text())['finished'] is True


def test_validation_is_not_held_twice(tmp_path):
    run(tmp_path, True, ('iter', 7))
    run(tmp_path, True, resume=True)
    assert not any('before the validation of this checkpoint' in p.read_text()
                   for p in tmp_path.rglob('*.log'))


def test_a_checkpoint_without_random_states_resumes_with_a_warning(tmp_path):
    run(tmp_path, True, ('iter', 7))
    path = tmp_path / 'epoch_2.pth'
    content = read_checkpoint(str(path))
    del content['random_states']
    torch.save(content, path)
    run(tmp_path, True, resume=True)
    assert 'no random states for 1 processes' in ''.join(
        p.read_text() for p in tmp_path.rglob('*.log'))


@pytest.mark.parametrize('by_epoch', [True, False])
def test_divergence_ends_the_run_and_keeps_the_last_finite_checkpoint(tmp_path, by_epoch):
    """lr 1e6 from the second checkpoint on."""
    run(tmp_path, by_epoch, ('iter', 7))
    before = {p.name for p in tmp_path.glob('*.pth')}
    last = (tmp_path / 'last_checkpoint').read_text()
    path = tmp_path / last.rsplit('/', 1)[1]
    content = read_checkpoint(str(path))
    content['optimizer']['param_groups'][0]['lr'] = 1e6
    torch.save(content, path)
    with pytest.raises(Diverged, match=r'loss = (nan|inf)\. The training diverged.*is from before'
                                       r'.*Lower the learning rate \(1e\+06'):
        run(tmp_path, by_epoch, resume=True, interval=10**6, save_last=False)
    assert {p.name for p in tmp_path.glob('*.pth')} == before
    assert (tmp_path / 'last_checkpoint').read_text() == last


def test_weights_that_are_not_finite_are_never_saved(tmp_path, monkeypatch):
    """The loss may still be finite: one bad step, seen by the weights first."""

    def spoil(runner, batch_idx, data_batch=None):
        if runner.iter == 5:
            hook = runner.optim_wrapper.optimizer.param_groups[0]
            hook['params'][0].grad = None
            handle = runner.model.fc.weight.register_hook(lambda grad: grad * math.nan)
            monkeypatch.setattr(StopIn, 'before_train_iter', lambda *args, **kwargs: None)
            runner.spoiled = handle

    monkeypatch.setattr(StopIn, 'before_train_iter', lambda self, *args, **kwargs: spoil(
        *args, **kwargs))
    with pytest.raises(Diverged, match=r'weights or optimizer states are not finite '
                                       r'\(state_dict\.fc\.weight.*epoch_1\.pth, is from before'):
        run(tmp_path, True, ('never', 0))
    assert [p.name for p in tmp_path.glob('epoch*')] == ['epoch_1.pth']
    assert torch.isfinite(read_checkpoint(str(tmp_path / 'epoch_1.pth'))['state_dict'][
        'fc.weight']).all()


def test_a_loss_scaler_is_given_ten_iterations():
    """It skips such steps, so the weights stay whole."""
    from types import SimpleNamespace

    from mmext.engine.hooks import PATIENCE, SafeCheckpointHook
    hook = SafeCheckpointHook(interval=-1, save_last=False)
    scaler = SimpleNamespace(is_enabled=lambda: True)
    runner = SimpleNamespace(
        iter=0, work_dir='none',
        optim_wrapper=SimpleNamespace(loss_scaler=scaler, get_lr=lambda: {'lr': [1.]}))
    nan, good = dict(loss=torch.tensor(math.nan)), dict(loss=torch.tensor(1.))
    for _ in range(3):
        for _ in range(PATIENCE - 1):
            hook.after_train_iter(runner, 0, outputs=nan)
        hook.after_train_iter(runner, 0, outputs=good)
    for _ in range(PATIENCE - 1):
        hook.after_train_iter(runner, 0, outputs=nan)
    with pytest.raises(Diverged, match='for 10 iterations'):
        hook.after_train_iter(runner, 0, outputs=nan)
    runner.optim_wrapper.loss_scaler = None
    hook = SafeCheckpointHook(interval=-1, save_last=False)
    with pytest.raises(Diverged, match='nothing was saved yet'):
        hook.after_train_iter(runner, 0, outputs=nan)
