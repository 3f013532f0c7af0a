"""BiasPrunedViT: FLOPs counted by running it against the closed formulas."""

import importlib

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mmext.analysis import flop_formulas as flops
from mmext.analysis.flop_counter import _handlers, count_flops, drop_values
from mmext.models import BiasPrunedViT
from mmext.ops.key_bias import key_bias_attention, use_form


def build(**kwargs):
    model = BiasPrunedViT(**{'arch': 'deit-tiny', **kwargs}).eval()
    model.set_gather('after')
    return model


@pytest.mark.parametrize('math', [False, True])
@pytest.mark.parametrize('shape', [(224, 224), (100, 170)])
@pytest.mark.parametrize('options,formula', [
    (dict(key_bias=False), {}),
    (dict(), dict(key_bias=True)),
    (dict(keep_ratio=.5), dict(keep_ratio=.5)),
    (dict(keep_ratio=(.9, .1)), dict(keep_ratio=(.9, .1))),
    (dict(num_qk_free=4), dict(qk_free_last=4)),
    (dict(with_cls_token=False, out_type='featmap', keep_ratio=(.9, .1)),
     dict(keep_ratio=(.9, .1), prefix_tokens=0)),
])
def test_counter_equals_formula(options, formula, shape, math):
    model = build(**options)
    x = torch.rand(1, 3, *shape)
    if math:
        with sdpa_kernel(SDPBackend.MATH):
            count = count_flops(model, x)
    else:
        count = count_flops(model, x)
    expected = 2 * flops.vit_macs(shape, *flops.vit_size('deit-tiny'), num_classes=0, **formula)
    assert count.total == expected


def test_gather_before_projection():
    model = build(keep_ratio=(.9, .1))
    model.set_gather('before')
    expected = flops.vit_macs((224, 224), *flops.vit_size('deit-tiny'), keep_ratio=(.9, .1),
                              gather_first=True, num_classes=0)
    assert count_flops(model, torch.rand(1, 3, 224, 224)).total == 2 * expected


def test_counter_sees_the_live_ratio():
    model, x = build(), torch.rand(1, 3, 224, 224)
    dense = count_flops(model, x)
    model.set_keep_ratio((.9, .1))
    pruned = count_flops(model, x)
    assert pruned.total < dense.total
    first, last = 'blocks.0.attn', 'blocks.11.attn'
    saved = [dense.by_module[k] - pruned.by_module[k] for k in (first, last)]
    assert saved == [2 * 2 * 197 * (197 - k) * 192 for k in (177, 19)]
    model.train()  # masks drop columns without saving work
    assert count_flops(model, x).total == dense.total


def test_bias_in_extra_channels_is_not_work():
    """Where the bias rides in widened heads (flash kernels), the method's work is counted."""
    model, x = build(arch='tiny-test'), torch.rand(1, 3, 64, 64)
    expected = flops.vit_macs((64, 64), 32, 2, 2, key_bias=True, num_classes=0)
    q, bias = torch.rand(1, 2, 17, 16), torch.rand(1, 2, 17)
    with use_form('channels'):
        assert count_flops(model, x).total == 2 * expected
        with FlopCounterMode(display=False, custom_mapping=_handlers()) as counter:
            key_bias_attention(q, q, q, bias)  # counting must leave the choice as it was
    assert counter.get_total_flops() == 2 * 2 * 17 * 17 * (24 + 24)  # what else had been counted


@pytest.mark.parametrize('arch', ['deit-tiny', 'deit-small', 'deit-base', 'vit-large'])
def test_large_images_from_shapes_alone(arch, monkeypatch):
    for module, name in (('mmext.models.backbones.bias_pruned_vit', 'trunc_normal_'),
                         ('mmext.layers.biased_attention', 'trunc_normal_'),
                         ('torch.nn.init', 'kaiming_uniform_')):  # values do not matter here
        monkeypatch.setattr(importlib.import_module(module), name, lambda t, *args, **kwargs: t)
    model = build(arch=arch)
    with drop_values(model):
        for keep in (None, (.9, .1), (.9, .5)):
            model.set_keep_ratio(keep)
            count = count_flops(model, torch.rand(1, 3, 1024, 1024))
            expected = flops.vit_macs((1024, 1024), *flops.vit_size(arch), key_bias=True,
                                      keep_ratio=keep, num_classes=0)
            assert count.total == 2 * expected
