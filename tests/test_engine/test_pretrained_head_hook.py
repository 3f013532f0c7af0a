import logging
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from mmext.engine import PretrainedHeadHook

STATE = {
    'patch_embed.proj.weight': torch.rand(8, 3, 4, 4),
    'head.weight': torch.rand(5, 8),
    'head.bias': torch.rand(5),
}


def runner(classes=5, **kwargs):
    head = nn.Module()
    head.fc = nn.Linear(8, classes)
    model = nn.Module()
    model.head = head
    return SimpleNamespace(model=model, iter=0, _load_from=None, logger=logging.getLogger(),
                           **kwargs)


@pytest.mark.parametrize('layout', ['official', 'mmext', 'mmpretrain'])
def test_head_is_copied(tmp_path, layout):
    if layout == 'official':
        content = {'model': STATE}
    elif layout == 'mmext':
        content = {'state_dict': {
            'backbone.patch_embed.proj.weight': STATE['patch_embed.proj.weight'],
            'head.fc.weight': STATE['head.weight'], 'head.fc.bias': STATE['head.bias']}}
    else:
        content = {'state_dict': {
            'backbone.patch_embed.projection.weight': STATE['patch_embed.proj.weight'],
            'head.layers.head.weight': STATE['head.weight'],
            'head.layers.head.bias': STATE['head.bias']}}
    torch.save(content, tmp_path / 'a.pth')
    run = runner()
    PretrainedHeadHook(str(tmp_path / 'a.pth')).before_train(run)
    assert torch.equal(run.model.head.fc.weight, STATE['head.weight'])
    assert torch.equal(run.model.head.fc.bias, STATE['head.bias'])


def test_resumed_run_is_left_alone(tmp_path):
    run = runner()
    run._load_from = 'epoch_3.pth'
    before = run.model.head.fc.weight.clone()
    PretrainedHeadHook(str(tmp_path / 'missing.pth')).before_train(run)
    assert torch.equal(run.model.head.fc.weight, before)


def test_other_classes_are_refused(tmp_path):
    torch.save(STATE, tmp_path / 'a.pth')
    with pytest.raises(ValueError, match='other classes'):
        PretrainedHeadHook(str(tmp_path / 'a.pth')).before_train(runner(classes=7))
    torch.save({k: v for k, v in STATE.items() if 'head' not in k}, tmp_path / 'b.pth')
    with pytest.raises(ValueError, match='new head'):
        PretrainedHeadHook(str(tmp_path / 'b.pth')).before_train(runner())
