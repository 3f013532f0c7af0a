"""The pyramid against a plain computation of the same layers, its sizes, layout and cost."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from mmext.models import SimpleFeaturePyramid
from mmext.registry import MODELS


def layer_norm(x, weight, bias):
    """LayerNorm over channels, from its definition."""
    mean = x.mean(1, keepdim=True)
    var = ((x - mean)**2).mean(1, keepdim=True)
    scale, shift = weight[None, :, None, None], bias[None, :, None, None]
    return (x - mean) / (var + 1e-6).sqrt() * scale + shift


def deconv(x, weight, bias):
    """2x2 transposed conv of stride 2: every pixel becomes a 2x2 square."""
    b, _, h, w = x.shape
    out = torch.einsum('bchw,cdij->bdhiwj', x, weight)
    return out.reshape(b, -1, 2 * h, 2 * w) + bias[None, :, None, None]


def plain_pyramid(x, p):
    """Four scales and one pooled level from the module's parameters ``p``, in fp64."""

    def head(x, level, first):
        x = F.conv2d(x, p[f'levels.{level}.{first}.weight'])
        x = layer_norm(x, p[f'levels.{level}.{first + 1}.weight'],
                       p[f'levels.{level}.{first + 1}.bias'])
        x = F.conv2d(x, p[f'levels.{level}.{first + 2}.weight'], padding=1)
        return layer_norm(x, p[f'levels.{level}.{first + 3}.weight'],
                          p[f'levels.{level}.{first + 3}.bias'])

    x4 = deconv(x, p['levels.0.0.weight'], p['levels.0.0.bias'])
    x4 = layer_norm(x4, p['levels.0.1.weight'], p['levels.0.1.bias'])
    x4 = 0.5 * x4 * (1 + torch.erf(x4 / math.sqrt(2)))
    x4 = deconv(x4, p['levels.0.3.weight'], p['levels.0.3.bias'])
    x2 = deconv(x, p['levels.1.0.weight'], p['levels.1.0.bias'])
    pad = F.pad(x, (0, x.shape[3] % 2, 0, x.shape[2] % 2), value=-math.inf)
    half = torch.stack([pad[:, :, i::2, j::2] for i in (0, 1) for j in (0, 1)]).amax(0)
    outs = [head(x4, 0, 4), head(x2, 1, 1), head(x, 2, 0), head(half, 3, 1)]
    return outs + [outs[-1][:, :, ::2, ::2]]


@pytest.mark.parametrize('hw', [(21, 33), (16, 12), (4, 66), (1, 1)])
def test_values_and_gradients(hw):
    torch.manual_seed(0)
    neck = SimpleFeaturePyramid(24, 16).double()
    for param in neck.parameters():
        torch.nn.init.normal_(param)
    x = torch.randn(2, 24, *hw, dtype=torch.double, requires_grad=True)
    outs = neck((x,))
    expected = plain_pyramid(x, dict(neck.named_parameters()))
    assert len(outs) == len(expected) == 5
    for out, ref, scale in zip(outs, expected, (4, 2, 1, 0.5, 0.25), strict=True):
        torch.testing.assert_close(out, ref)
        assert out.shape[2:] == tuple(math.ceil(n * scale) for n in hw)
        assert out.is_contiguous()
    inputs = [x, *neck.parameters()]
    grads = torch.autograd.grad(sum((o**2).sum() for o in outs), inputs)
    refs = torch.autograd.grad(sum((o**2).sum() for o in expected), inputs)
    for grad, ref in zip(grads, refs, strict=True):
        torch.testing.assert_close(grad, ref)


def test_cost_of_the_paper():
    """DeiT-S at 1024²: 115.763 GFLOPs (two per multiply-add)."""
    with torch.device('meta'):
        neck = SimpleFeaturePyramid(384)
        with FlopCounterMode(display=False) as counter:
            neck((torch.empty(1, 384, 64, 64),))
    assert counter.get_total_flops() / 1e9 == pytest.approx(115.763, abs=5e-4)


@pytest.mark.parametrize('scales, num_outs, stride, expected', [
    ((4, 2, 1, 0.5), None, 16, (4, 8, 16, 32, 64)),
    ((2, 1, 0.5), 3, 8, (4, 8, 16)),
    ((1,), 3, 16, (16, 32, 64)),
    ((4, 1), 2, 16, (4, 16)),
    ((0.5,), 1, 14, (28,)),
])
def test_subsets_of_scales(scales, num_outs, stride, expected):
    neck = MODELS.build(
        dict(
            type='mmext.SimpleFeaturePyramid', in_channels=8, out_channels=6,
            scale_factors=scales, num_outs=num_outs, in_stride=stride, strides=expected))
    assert neck.strides == expected
    outs = neck(torch.randn(1, 8, 8, 16))
    for out, out_stride in zip(outs, expected, strict=True):
        assert out.shape == (1, 6, 8 * stride // out_stride, 16 * stride // out_stride)


@pytest.mark.parametrize('norm_cfg', [None, dict(type='BN'), dict(type='GN', num_groups=2)])
def test_other_norms(norm_cfg):
    neck = SimpleFeaturePyramid(8, 4, norm_cfg=norm_cfg)
    outs = neck(torch.randn(2, 8, 6, 6))
    sum(out.pow(3).sum() for out in outs).backward()
    assert all(param.grad.abs().sum() > 0 for param in neck.parameters() if param.ndim > 1)
    assert not any(isinstance(module, torch.nn.LayerNorm) for module in neck.modules())


@pytest.mark.parametrize('kwargs, message', [
    (dict(scale_factors=(3, 1)), 'must be one of'),
    (dict(scale_factors=()), 'must be one of'),
    (dict(scale_factors=(1, 2)), 'fall strictly'),
    (dict(scale_factors=(2, 2)), 'fall strictly'),
    (dict(num_outs=3), 'num_outs=3'),
    (dict(in_channels=6), 'multiple of 4'),
    (dict(in_stride=14), 'whole numbers'),
    (dict(strides=(4, 8, 16, 32)), 'do not match'),
])
def test_errors_at_construction(kwargs, message):
    with pytest.raises(ValueError, match=message):
        SimpleFeaturePyramid(**{'in_channels': 8, **kwargs})


def test_error_for_a_wrong_map():
    neck = SimpleFeaturePyramid(8, 4)
    with pytest.raises(ValueError, match='in_channels=8'):
        neck(torch.randn(1, 16, 4, 4))
    with pytest.raises(ValueError, match='featmap'):
        neck(torch.randn(1, 8))
