"""A module is called, never read: adapters, hooks and parametrizations on any projection count."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from mmext.layers import DMSA, BiasedAttention, QueryKeyFreeAttention
from mmext.models.backbones.dmst import FourierPosition


class Adapter(nn.Module):
    """What LoRA does to a linear layer: the frozen one beside a trained one of low rank."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)
        self.in_features, self.out_features = base.in_features, base.out_features

    @property
    def weight(self):  # as peft's layers show it
        return self.base.weight

    @property
    def bias(self):
        return self.base.bias

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class Double(nn.Module):

    def forward(self, weight):
        return 2 * weight


LAYERS = {
    'pruned': lambda: BiasedAttention(32, 4, qkv_bias=True, keep_ratio=.3, train_mode='gather'),
    'gathered before': lambda: BiasedAttention(
        32, 4, qkv_bias=True, keep_ratio=.3, gather='before', train_mode='gather'),
    'query-key-free': lambda: QueryKeyFreeAttention(32, 4, qkv_bias=True, keep_ratio=.5),
    'dmsa': lambda: DMSA(32, 4),
}
CASES = [(layer, name) for layer in LAYERS for name in (
    dict(zip(LAYERS, (('qkv', 'key_bias', 'proj'), ('qkv', 'key_bias'), ('v', 'key_bias'),
                      ('qkv', 'membership')), strict=True))[layer])]


def merged(attn, name):
    """The layer with its adapter folded into the weight: what must come out."""
    adapter = getattr(attn, name)
    with torch.no_grad():
        plain = nn.Linear(adapter.in_features, adapter.out_features,
                          bias=adapter.base.bias is not None)
        plain.weight.copy_(adapter.base.weight + adapter.up.weight @ adapter.down.weight)
        if plain.bias is not None:
            plain.bias.copy_(adapter.base.bias)
    setattr(attn, name, plain)
    return attn


@pytest.mark.parametrize('layer, name', CASES)
@pytest.mark.parametrize('train', [True, False])
def test_adapter_acts_and_learns(layer, name, train):
    torch.manual_seed(0)
    attn = LAYERS[layer]().train(train)
    setattr(attn, name, Adapter(getattr(attn, name)))
    nn.init.normal_(getattr(attn, name).up.weight)
    x = torch.randn(2, 40, 32)
    out = attn(x)
    out.square().sum().backward()
    for part in ('up', 'down'):
        assert getattr(getattr(attn, name), part).weight.grad.abs().sum() > 0
    with torch.no_grad():  # the path without gradients is another one
        torch.testing.assert_close(attn(x), out, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(merged(attn, name)(x), out, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize('layer, name', CASES)
def test_hooks_and_parametrizations_act(layer, name):
    torch.manual_seed(0)
    attn, x = LAYERS[layer]().eval(), torch.randn(2, 40, 32)
    with torch.no_grad():
        before = attn(x)
        handle = getattr(attn, name).register_forward_hook(lambda module, args, out: 2 * out)
        hooked = attn(x)
        assert (hooked - before).abs().max() > 1e-4
        handle.remove()
        torch.testing.assert_close(attn(x), before)
        if getattr(attn, name).bias is not None:
            getattr(attn, name).bias.zero_()
            handle = getattr(attn, name).register_forward_hook(lambda module, args, out: 2 * out)
            hooked = attn(x)
            handle.remove()
        parametrize.register_parametrization(getattr(attn, name), 'weight', Double())
        torch.testing.assert_close(attn(x), hooked, atol=1e-5, rtol=1e-4)


def test_fourier_positions_call_their_projection():
    torch.manual_seed(0)
    positions = FourierPosition(dim=16)
    before = positions((3, 4))
    positions.token_projection.register_forward_hook(lambda module, args, out: out + 1)
    torch.testing.assert_close(positions((3, 4)), before + 1)
