import pytest
import torch
from mmengine.optim import build_optim_wrapper
from torch import nn

import mmext.engine  # noqa: F401


class Model(nn.Module):

    def __init__(self):
        super().__init__()
        block = nn.ModuleDict({'attn': nn.Linear(4, 4), 'mlp': nn.Linear(4, 4)})
        self.backbone = nn.ModuleDict({'blocks': nn.ModuleList([block])})
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        block = self.backbone['blocks'][0]
        return self.head(block['mlp'](block['attn'](x)))


def build(model, **paramwise):
    return build_optim_wrapper(model, dict(
        type='OptimWrapper', optimizer=dict(type='SGD', lr=0.1, weight_decay=0.1),
        constructor='mmext.TrainOnlyOptimWrapperConstructor', paramwise_cfg=paramwise))


def test_only_named_parameters_move():
    model = Model()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    wrapper = build(model, train_only=['.attn.'])
    wrapper.update_params(model(torch.rand(3, 4)).square().sum())
    moved = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    assert moved == {'backbone.blocks.0.attn.weight', 'backbone.blocks.0.attn.bias'}
    listed = [p for group in wrapper.optimizer.param_groups for p in group['params']]
    assert {id(p) for p in listed} == {id(p) for p in model.parameters() if p.requires_grad}


@pytest.mark.parametrize('train_only', [None, [], '.attn.'])
def test_missing_list(train_only):
    with pytest.raises(ValueError, match='train_only'):
        build(Model(), train_only=train_only)


def test_name_that_matches_nothing():
    with pytest.raises(ValueError, match='attention'):
        build(Model(), train_only=['.attn.', '.attention.'])
