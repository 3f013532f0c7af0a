"""Rates and decay against mmpretrain's constructor and against the formula."""

import pytest
import torch
from mmengine.optim import build_optim_wrapper
from torch import nn

from mmext.engine.layer_decay_constructor import LayerDecayOptimWrapperConstructor
from mmext.models import SimpleFeaturePyramid

OPTIMIZER = dict(type='AdamW', lr=1e-3, weight_decay=0.1, betas=(0.9, 0.999))


def settings(model, rate=0.7, **optimizer):
    """Parameter name -> (lr, weight decay, number of groups it is in)."""
    wrapper = build_optim_wrapper(
        model,
        dict(
            type='OptimWrapper', optimizer={**OPTIMIZER, **optimizer},
            constructor='mmext.LayerDecayOptimWrapperConstructor',
            paramwise_cfg=dict(layer_decay_rate=rate)))
    names = {id(param): name for name, param in model.named_parameters()}
    out = {}
    for group in wrapper.optimizer.param_groups:
        assert [names[id(param)] for param in group['params']] == group['param_names']
        for name in group['param_names']:
            count = out.get(name, (0, 0, 0))[2]
            out[name] = (group['lr'], group['weight_decay'], count + 1)
    return out


class Backbone(nn.Module):
    """Two blocks with every kind of parameter."""

    def __init__(self):
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 8))
        self.pos_embed = nn.Parameter(torch.zeros(1, 5, 8))
        self.patch_embed = nn.Conv2d(3, 8, 4)
        self.blocks = nn.ModuleList()
        for _ in range(2):
            block = nn.Module()
            block.norm1 = nn.LayerNorm(8)
            block.temp = nn.Parameter(torch.ones(2, 1))
            block.gamma1 = nn.Parameter(torch.ones(8))
            block.rel_pos_h = nn.Parameter(torch.ones(7, 4))
            block.qkv = nn.Linear(8, 24)
            block.key_bias = nn.Linear(8, 2, bias=False)
            self.blocks.append(block)
        self.norm = nn.LayerNorm(8)

    def no_weight_decay(self):
        return {'cls_token', 'pos_embed', 'blocks.0.temp', 'blocks.1.temp'}

    def get_layer_depth(self, name, prefix=''):
        if not name.startswith(prefix):
            return 3, 4
        name = name[len(prefix):]
        if name.startswith('blocks.'):
            return int(name.split('.')[1]) + 1, 4
        return (0 if name.split('.')[0] in ('cls_token', 'pos_embed', 'patch_embed') else 3), 4


class Detector(nn.Module):

    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.neck = SimpleFeaturePyramid(8, 8)
        self.head = nn.Sequential(nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8), nn.Linear(8, 4))


def test_every_kind_of_parameter():
    model = Detector()
    out = settings(model)
    assert set(out) == {name for name, _ in model.named_parameters()}
    assert all(count == 1 for _, _, count in out.values())
    rate = {0: 0.343, 1: 0.49, 2: 0.7, 3: 1.0}
    expected = {
        'backbone.cls_token': (0, 0), 'backbone.pos_embed': (0, 0),
        'backbone.patch_embed.weight': (0, 0.1), 'backbone.patch_embed.bias': (0, 0),
        'backbone.norm.weight': (3, 0), 'backbone.norm.bias': (3, 0),
        'head.0.weight': (3, 0.1), 'head.0.bias': (3, 0), 'head.1.weight': (3, 0),
        'head.1.bias': (3, 0), 'head.2.weight': (3, 0.1), 'head.2.bias': (3, 0),
    }
    for i in range(2):
        expected.update({
            f'backbone.blocks.{i}.{name}': (i + 1, decay)
            for name, decay in [
                ('norm1.weight', 0), ('norm1.bias', 0), ('temp', 0), ('gamma1', 0),
                ('rel_pos_h', 0.1), ('qkv.weight', 0.1), ('qkv.bias', 0),
                ('key_bias.weight', 0.1)]
        })
    expected.update({
        name: (3, 0.1 if param.ndim == 4 else 0)
        for name, param in model.named_parameters() if name.startswith('neck.')
    })
    assert set(expected) == set(out)
    for name, (depth, decay) in expected.items():
        assert out[name][:2] == (pytest.approx(1e-3 * rate[depth]), decay), name


def test_equals_mmpretrain_on_its_own_backbone():
    from mmpretrain.models import VisionTransformer
    from mmpretrain.models.classifiers import ImageClassifier
    from mmpretrain.registry import MODELS
    with MODELS.switch_scope_and_registry('mmpretrain'):
        model = ImageClassifier(
            backbone=dict(
                type=VisionTransformer, img_size=32, patch_size=16,
                arch=dict(embed_dims=16, num_layers=3, num_heads=2, feedforward_channels=32)),
            head=dict(type='LinearClsHead', num_classes=5, in_channels=16))
    reference = build_optim_wrapper(
        model,
        dict(
            type='OptimWrapper', optimizer=OPTIMIZER,
            constructor='mmpretrain.LearningRateDecayOptimWrapperConstructor',
            paramwise_cfg=dict(
                layer_decay_rate=0.65, norm_decay_mult=0., flat_decay_mult=0.,
                custom_keys={'.cls_token': dict(decay_mult=0.), '.pos_embed': dict(decay_mult=0.)})
        )).optimizer.param_groups
    out = settings(model, rate=0.65)
    assert len(out) == len(reference)
    for group in reference:
        lr, decay, _ = out[group['param_name']]
        assert (lr, decay) == (pytest.approx(group['lr']), group['weight_decay'])


@pytest.mark.parametrize('backbone', [
    dict(type='mmext.BiasPrunedViT', arch='tiny-test'),
    dict(type='mmext.BiasPrunedViT', arch='tiny-test', out_type='featmap', with_cls_token=False,
         rel_pos=True, window_size=2),
    dict(type='mmext.BiasPrunedViT', arch='tiny-test', num_qk_free=1, qk_norm=True),
    dict(type='mmext.DMST', arch='tiny-test'), dict(type='mmext.ToST', arch='tiny-test'),
    dict(type='mmext.DMST', arch='tiny-test', attn='gated')])
def test_decay_is_timms_rule_for_every_backbone(backbone):
    """timm decays what has two axes and is not named by the model; so does ours, by the model."""
    from timm.optim import param_groups_weight_decay

    from mmext.registry import MODELS
    model = nn.Module()
    model.backbone = MODELS.build(backbone)
    names = {id(param): name for name, param in model.named_parameters()}
    groups = param_groups_weight_decay(
        model.backbone, weight_decay=0.1, no_weight_decay_list=model.backbone.no_weight_decay())
    want = {names[id(p)]: group['weight_decay'] for group in groups for p in group['params']}
    got = {name: decay for name, (_, decay, _) in settings(model).items()}
    assert got == want and {0.0, 0.1} == set(got.values())
    assert all(decay == 0.1 for name, decay in got.items() if 'key_bias' in name)


def test_frozen_parameters_are_in_no_group():
    model = Detector()
    model.backbone.patch_embed.requires_grad_(False)
    model.backbone.blocks[0].requires_grad_(False)
    out = settings(model)
    expected = {name for name, param in model.named_parameters() if param.requires_grad}
    assert set(out) == expected
    assert not any(name.startswith('backbone.blocks.0.') for name in out)


def test_equal_rates_need_no_layer_depth():
    model = nn.Module()
    model.backbone = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    out = settings(model, rate=1.0)
    assert {name: value[:2] for name, value in out.items()} == {
        'backbone.0.weight': (1e-3, 0.1), 'backbone.0.bias': (1e-3, 0),
        'backbone.1.weight': (1e-3, 0), 'backbone.1.bias': (1e-3, 0)}


def test_groups_without_paramwise_cfg():
    """mmengine drops the grouping when paramwise_cfg is absent; norms must not be decayed."""
    wrapper = build_optim_wrapper(
        nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)),
        dict(
            type='OptimWrapper', optimizer=OPTIMIZER,
            constructor='mmext.LayerDecayOptimWrapperConstructor'))
    decay = {group['weight_decay']: len(group['params']) for group in wrapper.param_groups}
    assert decay == {0.1: 1, 0.0: 3}


def test_state_survives_a_round_trip():
    model = Detector()
    build = LayerDecayOptimWrapperConstructor(dict(optimizer=OPTIMIZER),
                                              dict(layer_decay_rate=0.7))
    first, second = build(model), build(model)
    sum(param.sum() for param in model.parameters()).backward()
    first.optimizer.step()
    second.load_state_dict(first.state_dict())
    pairs = zip(first.optimizer.param_groups, second.optimizer.param_groups, strict=True)
    for a, b in pairs:
        assert a['param_names'] == b['param_names'] and a['lr'] == b['lr']


@pytest.mark.parametrize('kwargs, error, message', [
    (dict(layer_decay_rate=0.0), ValueError, 'layer_decay_rate=0.0'),
    (dict(layer_decay_rate=1.5), ValueError, 'layer_decay_rate=1.5'),
    (dict(decay_rate=0.7), ValueError, "'decay_rate'"),
    (dict(layer_decay_rate=0.7), TypeError, 'get_layer_depth'),
])
def test_errors(kwargs, error, message):
    with pytest.raises(error, match=message):
        LayerDecayOptimWrapperConstructor(dict(optimizer=OPTIMIZER), kwargs)(nn.Linear(2, 2))


def test_error_without_rate_or_parameters():
    with pytest.raises(ValueError, match='has no lr'):
        LayerDecayOptimWrapperConstructor(dict(optimizer=dict(type='AdamW')))
    with pytest.raises(ValueError, match='no trainable parameter'):
        build = LayerDecayOptimWrapperConstructor(dict(optimizer=OPTIMIZER))
        build(nn.Linear(2, 2).requires_grad_(False))
