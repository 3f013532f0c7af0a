"""Properties that hold for every size, ratio and dtype, on examples drawn by hypothesis."""

import itertools
import math
from fractions import Fraction

import pytest
import torch
from torch.testing import assert_close

from mmext import ops

hypothesis = pytest.importorskip('hypothesis')
given, settings, st = hypothesis.given, hypothesis.settings, hypothesis.strategies


def holds_for(*examples):
    """The test runs on 60 fixed draws of ``examples``."""
    return lambda test: settings(
        max_examples=60, deadline=None, derandomize=True,
        suppress_health_check=[hypothesis.HealthCheck.too_slow])(given(*examples)(test))


sizes = st.integers(1, 3), st.integers(1, 4), st.integers(1, 40)  # B, H, N
ratios = st.one_of(st.floats(0.001, 1), st.integers(1, 40).map(lambda n: n / 40))
dtypes = st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16])
seeds = st.integers(0, 2**20)
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def normal(seed, *shape, dtype=torch.float64):
    g = torch.Generator(torch.get_default_device()).manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=dtype)


def some_valid(seed, batch, tokens):
    """(B, N) bool, at least one True a sample."""
    valid = normal(seed, batch, tokens) > 0
    valid[torch.arange(batch), torch.arange(batch) % tokens] = True
    return valid


# ------------------------------------------------------------------ selection
@holds_for(st.integers(1, 5000), st.integers(1, 1000))
def test_number_kept_is_the_exact_floor(tokens, thousandths):
    """Against rational arithmetic, also where the ratio is not a binary fraction."""
    exact = math.floor(Fraction(thousandths, 1000) * tokens)
    assert ops.num_kept(thousandths / 1000, tokens) == max(1, exact)


@holds_for(ratios, ratios, st.integers(1, 30))
def test_linear_schedule(first, last, depth):
    schedule = ops.keep_ratio_schedule((first, last), depth)
    if depth == 2:
        assert schedule == [first, last]
    assert len(schedule) == depth and schedule[0] == first
    if depth > 1:
        assert schedule[-1] == pytest.approx(last)
        steps = [b - a for a, b in itertools.pairwise(schedule)]
        assert max(steps) - min(steps) < 1e-9
    low, high = sorted([first, last])
    assert all(low - 1e-12 <= ratio <= high + 1e-12 for ratio in schedule)


@holds_for(*sizes, ratios, dtypes, seeds, st.booleans(), st.integers(0, 3))
def test_top_k_keeps_the_largest(batch, heads, tokens, ratio, dtype, seed, masked, protected):
    """No dropped valid column has a larger bias than a kept one; counts are per sample."""
    protected = min(protected, tokens)
    bias = normal(seed, batch, heads, tokens).to(dtype)
    valid = some_valid(seed + 1, batch, tokens) if masked else None
    if masked:
        valid[:, :protected] = True
    index, kept = ops.top_k_columns(bias, ratio, valid, protected)
    mask = ops.columns_to_mask(index, kept, tokens)
    assert all(len(set(row.tolist())) == len(row) for row in index.flatten(0, 1))
    everything = torch.ones(batch, tokens, dtype=torch.bool) if valid is None else valid
    for sample in range(batch):
        count = max(ops.num_kept(ratio, int(everything[sample].sum())), protected, 1)
        assert (mask[sample].sum(-1) == count).all()
    assert not (mask & ~everything[:, None]).any() and mask[..., :protected].all()
    free = mask.clone()
    free[..., :protected] = True  # protected columns may be small
    lowest = bias.float().masked_fill(~mask, math.inf)[..., protected:]
    highest = bias.float().masked_fill(free | ~everything[:, None], -math.inf)[..., protected:]
    if lowest.numel():
        assert (lowest.amin(-1) >= highest.amax(-1)).all()


@holds_for(*sizes, st.floats(0.01, 1), seeds, st.booleans())
def test_threshold_set_is_the_smallest_that_reaches_the_mass(
        batch, heads, tokens, tau, seed, masked):
    bias = 3 * normal(seed, batch, heads, tokens)
    valid = some_valid(seed + 1, batch, tokens) if masked else None
    mask = ops.columns_to_mask(*ops.threshold_columns(bias, tau, valid), tokens)
    if masked:
        bias = bias.masked_fill(~valid[:, None], -math.inf)
    mass = bias.float().softmax(-1).double()
    held = (mass * mask).sum(-1)
    assert mask.any(-1).all() and (held >= tau - 1e-5).all()
    least = mass.masked_fill(~mask, math.inf).amin(-1)
    if tau < 1:
        assert ((held - least < tau + 1e-5) | (mask.sum(-1) == 1)).all()


# ------------------------------------------------------------------ attention with key bias
@holds_for(*sizes, st.integers(1, 9), ratios, dtypes, seeds)
def test_masked_gathered_and_reference_agree(batch, heads, tokens, width, ratio, dtype, seed):
    """Values in every dtype against fp64; gradients in fp64."""
    qkv = normal(seed, batch, tokens, 3, heads, width).to(dtype)
    wide = torch.promote_types(dtype, torch.float32)
    bias = (2 * normal(seed + 1, batch, heads, tokens)).to(wide)
    index, kept = ops.top_k_columns(bias, ratio)
    mask = ops.columns_to_mask(index, kept, tokens)

    def forms(qkv, bias):
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        yield ops.key_bias_attention(q, k, v, bias, mask)
        yield ops.key_bias_attention(q, k, v, bias, mask, form='channels')
        yield ops.key_bias_attention(
            q, *ops.gather_kv(qkv.contiguous(), index), bias.gather(-1, index))

    q, k, v = qkv.double().permute(2, 0, 3, 1, 4)
    want, attn = ops.reference_key_bias_attention(q, k, v, bias.double(), mask)
    assert_close(attn.sum(-1), torch.ones_like(attn[..., 0]))
    assert (attn.masked_select(~mask[:, :, None].expand_as(attn)) == 0).all()
    for out in forms(qkv, bias):
        assert out.dtype == dtype and out.isfinite().all()
        assert_close(out.double(), want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    if dtype == torch.float64:
        qkv, bias = qkv.requires_grad_(), bias.requires_grad_()
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        want, _ = ops.reference_key_bias_attention(q, k, v, bias, mask)
        grads = torch.autograd.grad(want.square().sum(), (qkv, bias))
        for out in forms(qkv, bias):
            for a, b in zip(torch.autograd.grad(out.square().sum(), (qkv, bias)), grads,
                            strict=True):
                assert_close(a, b, atol=1e-8, rtol=1e-8)


@holds_for(*sizes, st.integers(1, 6), ratios, seeds)
def test_gathering_before_and_after_the_projection(batch, heads, tokens, width, ratio, seed):
    dim = heads * width
    x, weight = normal(seed, batch, tokens, dim), normal(seed + 1, 3 * dim, dim)
    offset = normal(seed + 2, 3 * dim)
    index, _ = ops.top_k_columns(normal(seed + 3, batch, heads, tokens), ratio)
    qkv = torch.nn.functional.linear(x, weight, offset).view(batch, tokens, 3, heads, width)
    for a, b in zip(ops.gather_kv(qkv, index),
                    ops.project_kept_kv(x, index, weight[dim:], offset[dim:]), strict=True):
        assert_close(a, b)


@holds_for(*sizes, seeds, st.floats(-50, 50))
def test_a_constant_on_the_bias_changes_nothing(batch, heads, tokens, seed, constant):
    q, k, v = normal(seed, 3, batch, heads, tokens, 4)
    bias = normal(seed + 1, batch, heads, tokens)
    assert_close(ops.key_bias_attention(q, k, v, bias),
                 ops.key_bias_attention(q, k, v, bias + constant), atol=1e-9, rtol=1e-9)
    assert_close(ops.query_key_free_attention(v, bias),
                 ops.query_key_free_attention(v, bias + constant), atol=1e-9, rtol=1e-9)


# ------------------------------------------------------------------ soft threshold
@holds_for(*sizes, st.sampled_from([-1, 0, 1, 2]), dtypes, seeds,
       st.sampled_from([1e-3, 1.0, 30.0, 1e3]))
def test_soft_threshold_is_the_projection_onto_the_simplex(
        batch, heads, tokens, dim, dtype, seed, size):
    """Optimality (KKT): on the support s - ST is one constant, off it s is not above that."""
    s = (size * normal(seed, batch, heads, tokens)).to(dtype)
    out = ops.soft_threshold(s, dim)
    assert out.dtype == dtype and (out >= 0).all()
    assert_close(out.double().sum(dim), torch.ones_like(out.double().sum(dim)),
                 atol=TOLERANCE[dtype] * 4, rtol=0)
    kappa = (s.double() - out.double()).masked_fill(out == 0, -math.inf).amax(dim, keepdim=True)
    slack = TOLERANCE[dtype] * max(1.0, s.abs().max().item())
    on = out > 0
    assert ((s.double() - out.double() - kappa).abs()[on] <= slack).all()
    assert (s.double() <= kappa + slack)[~on].all()
    if dtype == torch.float64:
        assert_close(ops.soft_threshold(out, dim), out)  # a projection
        assert_close(ops.soft_threshold(s + 7, dim), out)  # blind to constants


# ------------------------------------------------------------------ token statistics
@holds_for(*sizes, st.integers(1, 9), dtypes, seeds, st.sampled_from([0.0, 1e-3, 1.0, 100.0]))
def test_token_statistics_against_their_equations(batch, heads, tokens, width, dtype, seed, size):
    """TSSA and DMSA, from all zeros to large tokens, in half precision too."""
    v = (size * normal(seed, batch, heads, tokens, width)).to(dtype)
    wide = torch.promote_types(dtype, torch.float32)
    logits, temp = normal(seed + 1, batch, heads, tokens).to(wide), torch.ones(heads, 1).to(wide)
    pairs = ((ops.tssa(v, temp)[0], ops.tssa_reference(v.double(), temp.double())),
             (ops.dmsa(v, logits)[0], ops.dmsa_reference(v.double(), logits.double())))
    for got, want in pairs:
        assert got.dtype == dtype and got.isfinite().all()
        limit = TOLERANCE[dtype] * max(1.0, want.abs().max().item())
        assert (got.double() - want).abs().max() <= limit


@holds_for(*sizes, st.integers(1, 5), seeds)
def test_padding_changes_no_valid_token(batch, heads, tokens, width, seed):
    """Statistics over valid tokens only: any content in the padding, the same result."""
    valid = some_valid(seed, batch, tokens)
    v = normal(seed + 1, batch, heads, tokens, width)
    logits, temp = normal(seed + 2, batch, heads, tokens), torch.ones(heads, 1).double()
    other = torch.where(valid[:, None, :, None], v, 5 * normal(seed + 3, *v.shape))
    shown = valid[:, None, :, None].expand_as(v)
    for run in (lambda x: ops.tssa(x, temp, valid)[0],
                lambda x: ops.dmsa(x, logits, valid=valid)[0]):
        a, b = run(v), run(other)
        assert_close(a[shown], b[shown])
        assert (b[~shown] == 0).all()


# ------------------------------------------------------------------ positions, merging
@holds_for(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2), st.integers(1, 3), seeds,
       st.sampled_from(['axial', 'raster']))
def test_rope_keeps_lengths_and_sees_only_differences(rows, cols, prefix, quarter, seed, mode):
    v = normal(seed, 1, 1, prefix + rows * cols, 4 * quarter)
    out = ops.apply_rope(v, (rows, cols), mode)
    assert_close(out.norm(dim=-1), v.norm(dim=-1))
    assert_close(out[:, :, :prefix], v[:, :, :prefix], atol=0, rtol=0)
    q, k = normal(seed + 1, 4 * quarter), normal(seed + 2, 4 * quarter)
    spread = [ops.apply_rope(x.expand(1, 1, rows * cols, -1), (rows, cols), mode)[0, 0]
              for x in (q, k)]
    dots = (spread[0] @ spread[1].t()).view(rows, cols, rows, cols)
    if rows > 1 and cols > 1:
        assert_close(dots[1:, 1:, 1:, 1:], dots[:-1, :-1, :-1, :-1], atol=1e-9, rtol=1e-9)


@holds_for(st.integers(1, 2), st.integers(2, 30), st.integers(0, 12), st.integers(0, 1), seeds)
def test_merging_keeps_the_sum_of_all_tokens(batch, tokens, r, protected, seed):
    x, metric = normal(seed, batch, tokens, 5), normal(seed + 1, batch, tokens, 4)
    matching = ops.bipartite_soft_matching(metric, r, protected)
    size = torch.ones(batch, tokens, dtype=torch.float64)
    if matching is None:
        assert r == 0 or tokens - protected < 2
        return
    merged, size = ops.merge_tokens(x, matching, size)
    removed = tokens - merged.shape[1]
    assert 0 < removed <= min(r, (tokens - protected) // 2)
    assert_close(size.sum(1), torch.full((batch,), float(tokens), dtype=torch.float64))
    assert_close((merged * size[..., None]).sum(1), x.sum(1))
    if protected:
        assert_close(merged[:, 0], x[:, 0])


@holds_for(*(st.integers(1, 9) for _ in range(4)), st.integers(0, 2), seeds)
def test_resized_positions_follow_bicubic_interpolation(h, w, height, width, prefix, seed):
    pos = normal(seed, 1, prefix + h * w, 3, dtype=torch.float32)
    out = ops.resize_position_grid(pos, (h, w), (height, width), prefix)
    assert_close(out[:, :prefix], pos[:, :prefix], atol=0, rtol=0)
    grid = pos[:, prefix:].transpose(1, 2).view(1, 3, h, w)
    want = torch.nn.functional.interpolate(
        grid, (height, width), mode='bicubic', align_corners=False)
    assert_close(out[:, prefix:].transpose(1, 2).view(1, 3, height, width), want,
                 atol=1e-5, rtol=1e-5)
