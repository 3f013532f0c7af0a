"""Properties of every attention layer over sizes, ratios and dtypes, on drawn examples."""

import copy

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from mmext.layers import DMSA, MSSA, TSSA, BiasedAttention, GatedMHSA
from mmext.ops import num_kept

LAYERS = dict(biased=BiasedAttention, dmsa=DMSA, tssa=TSSA, mssa=MSSA, gated=GatedMHSA)
names = st.sampled_from(sorted(LAYERS))
sides = st.integers(1, 7)
seeds = st.integers(0, 2**20)
dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
ratios = st.one_of(st.floats(0.01, 1), st.integers(1, 20).map(lambda n: n / 20))


def holds_for(*examples, count=40):
    return lambda test: settings(
        max_examples=count, deadline=None, derandomize=True,
        suppress_health_check=[HealthCheck.too_slow])(given(*examples)(test))


def build(name, heads, quarter, seed, **options):
    """A layer of head width 4 * quarter, with weights that the half formats hold exactly."""
    torch.manual_seed(seed)
    layer = LAYERS[name](4 * quarter * heads, heads, qkv_bias=name != 'mssa', **options)
    for parameter in layer.parameters():
        rounded = torch.randn_like(parameter).mul(0.3).bfloat16().half()
        parameter.data.copy_(rounded)
    return layer


def tokens(layer, batch, rows, cols, size, seed):
    generator = torch.Generator().manual_seed(seed)
    return size * torch.randn(
        batch, rows * cols, layer.qkv.in_features, generator=generator)


def gradients(layer, x, hw):
    """Output, and gradients of a fixed combination of it, with a loss scale as AMP has it."""
    x = x.detach().requires_grad_()
    out = layer(x, hw)
    weight = torch.linspace(-64, 64, out.numel(), dtype=torch.float64).view(out.shape)
    wanted = [x, *layer.parameters()]
    return [out, *torch.autograd.grad((out.double() * weight).sum(), wanted)]


@holds_for(names, st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), sides, sides, dtypes,
           st.sampled_from([0.0, 1e-3, 1.0]), st.sampled_from(['cast', 'autocast']), seeds)
def test_any_precision_is_close_to_fp64(
        name, batch, heads, quarter, rows, cols, dtype, size, mode, seed):
    layer = build(name, heads, quarter, seed)
    x = tokens(layer, batch, rows, cols, size, seed).to(dtype)
    want = gradients(copy.deepcopy(layer).double(), x.double(), (rows, cols))
    if mode == 'cast' or dtype == torch.float32:
        got = gradients(layer.to(dtype), x, (rows, cols))
        assert got[0].dtype == dtype
    else:
        with torch.autocast('cpu', dtype):
            got = gradients(layer, x.float(), (rows, cols))
    for a, b in zip(got, want, strict=True):
        assert a.isfinite().all()
        limit = 24 * torch.finfo(dtype).eps * b.norm() + 1e-3 * b.numel()**0.5
        assert (a.double() - b).norm() <= limit


@holds_for(names, sides, sides, dtypes, st.sampled_from([1e2, 1e3]), seeds)
def test_large_tokens_stay_finite(name, rows, cols, dtype, size, seed):
    layer = build(name, 2, 1, seed).to(dtype)
    x = tokens(layer, 1, rows, cols, size, seed).to(dtype).requires_grad_()
    out = layer(x, (rows, cols))
    assert out.isfinite().all()
    out.float().mean().backward()
    assert x.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in layer.parameters() if p.grad is not None)


@holds_for(names, st.integers(1, 3), sides, sides, sides, sides, seeds)
def test_padding_right_and_below_changes_nothing(name, batch, rows, cols, more, wider, seed):
    """An image alone against the same one in the corner of a larger grid, marked as valid."""
    layer = build(name, 2, 1, seed).double()
    small = tokens(layer, batch, rows, cols, 1.0, seed).double()
    grid = (rows + more, cols + wider)
    large = tokens(layer, batch, *grid, 9.0, seed + 1).double().unflatten(1, grid)
    large[:, :rows, :cols] = small.unflatten(1, (rows, cols))
    valid = torch.zeros(batch, *grid, dtype=torch.bool)
    valid[:, :rows, :cols] = True
    out = layer(large.flatten(1, 2), grid, valid.flatten(1))
    assert_close(out.unflatten(1, grid)[:, :rows, :cols].flatten(1, 2), layer(small, (rows, cols)))


@holds_for(st.integers(1, 3), st.integers(1, 3), st.integers(1, 30), ratios, st.booleans(),
           st.sampled_from([1, 2, 4]), st.booleans(), seeds)
def test_every_way_to_prune_is_the_same(batch, heads, length, ratio, threshold, quarter, half,
                                        seed):
    """Masked and both gathered forms, exactly floor(r N) columns, in values and gradients."""
    rule = dict(tau=ratio) if threshold else dict(keep_ratio=ratio)
    results = []
    for mode, gather in (('mask', 'auto'), ('gather', 'after'), ('gather', 'before')):
        layer = build('biased', heads, quarter, seed, train_mode=mode, gather=gather, **rule)
        x = tokens(layer, batch, 1, length, 1.0, seed)
        if half:
            keep = layer.bfloat16().forward_intermediates(x.bfloat16())[1]['kept']
        else:
            keep = layer.double().forward_intermediates(x.double())[1]['kept']
            results.append(gradients(layer, x.double(), None))
        if not threshold:
            assert (keep.sum(-1) == num_kept(ratio, length)).all()
        assert keep.any(-1).all()
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert_close(a, b, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize('name', ['biased', 'dmsa', 'tssa', 'mssa', 'gated'])
def test_one_token(name):
    layer = build(name, 2, 1, 0)
    assert layer(torch.randn(1, 1, 8), (1, 1)).isfinite().all()
