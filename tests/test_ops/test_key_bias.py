"""Every form of key-bias attention against the explicit one, in value and in gradient."""

from importlib import import_module

import pytest
import torch

from mmext.ops import (
    channel_bias_attention,
    columns_to_mask,
    gather_kv,
    key_bias_attention,
    project_kept_kv,
    query_key_free_attention,
    reference_key_bias_attention,
    top_k_columns,
)
from mmext.ops.key_bias import _split, use_form


def make(batch, heads, n, width, dtype=torch.float64, bias='random', seed=0):
    g = torch.Generator(torch.get_default_device()).manual_seed(seed)
    qkv = torch.randn(batch, n, 3, heads, width, generator=g, dtype=torch.float64)
    b = {'random': torch.randn(batch, heads, n, generator=g, dtype=torch.float64),
         'equal': torch.full((batch, heads, n), 0.3, dtype=torch.float64),
         'ties': torch.randint(0, 3, (batch, heads, n), generator=g).double(),
         'extreme': torch.randn(batch, heads, n, generator=g).sign().double() * 1e4}[bias]
    return qkv.to(dtype), b.to(dtype if dtype.itemsize >= 4 else torch.float32)


def gradients(function, qkv, bias):
    qkv, bias = qkv.clone().requires_grad_(), bias.clone().requires_grad_()
    out = function(qkv, bias)
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    (out * weight).sum().backward()
    return out.detach(), qkv.grad, bias.grad


def heads_first(qkv):
    return [qkv[:, :, i].transpose(1, 2) for i in range(3)]


@pytest.mark.parametrize('form', ['mask', 'channels'])
@pytest.mark.parametrize('bias', ['random', 'equal', 'ties', 'extreme'])
@pytest.mark.parametrize('shape, k', [
    ((2, 3, 17, 8), 5), ((1, 2, 9, 16), 1), ((1, 1, 12, 4), 12), ((3, 2, 33, 5), 20)])
def test_masked_and_gathered_equal_reference(shape, k, bias, form):
    qkv, b = make(*shape, bias=bias)
    index, kept = top_k_columns(b, k / shape[2])
    assert kept is None and index.shape[-1] == k
    keep = columns_to_mask(index, None, shape[2])

    def reference(qkv, b):
        return reference_key_bias_attention(*heads_first(qkv), b, keep)[0]

    def masked(qkv, b):
        return key_bias_attention(*heads_first(qkv), b, keep, form=form)

    def gathered(qkv, b):
        keys, values = gather_kv(qkv, index)
        return key_bias_attention(heads_first(qkv)[0], keys, values, b.gather(-1, index), form=form)

    expected = gradients(reference, qkv, b)
    for function in (masked, gathered):
        for got, want in zip(gradients(function, qkv, b), expected, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize('form', ['mask', 'channels'])
def test_masked_equals_gathered_in_fp32(form):
    qkv, b = make(2, 3, 101, 16, torch.float32)
    index, _ = top_k_columns(b, 0.3)
    keep = columns_to_mask(index, None, 101)
    masked = gradients(
        lambda t, b: key_bias_attention(*heads_first(t), b, keep, form=form), qkv, b)
    gathered = gradients(lambda t, b: key_bias_attention(
        heads_first(t)[0], *gather_kv(t, index), b.gather(-1, index), form=form), qkv, b)
    for got, want in zip(gathered, masked, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_auto_can_be_told_which_form():
    """The head that scaled_dot_product_attention is handed is wider in one form only."""
    qkv, b = make(1, 2, 20, 8, torch.float32)
    qkv, b = qkv.detach(), b.detach()

    def widths():
        with torch.profiler.profile(record_shapes=True) as profiler:
            key_bias_attention(*heads_first(qkv), b)
        return {event.input_shapes[0][-1] for event in profiler.events()
                if event.name == 'aten::scaled_dot_product_attention'}

    assert widths() == {8}
    with use_form('channels'):
        assert widths() == {16}
        with use_form('mask'):
            assert widths() == {8}
        assert widths() == {16}
    assert widths() == {8}
    with pytest.raises(ValueError, match="form='fused'"), use_form('fused'):
        pass


def test_dropped_columns_get_no_gradient():
    qkv, b = make(1, 2, 20, 8)
    index, _ = top_k_columns(b, 0.25)
    keep = columns_to_mask(index, None, 20)
    _, _, grad = gradients(lambda t, b: key_bias_attention(*heads_first(t), b, keep), qkv, b)
    assert (grad[~keep] == 0).all() and (grad[keep] != 0).all()


@pytest.mark.parametrize('with_bias', [True, False])
@pytest.mark.parametrize('limit', [None, 1])
def test_gather_before_projection_equals_after(with_bias, limit, monkeypatch):
    if limit is not None:  # one head at a time
        monkeypatch.setattr(
            import_module('mmext.ops.key_bias'), 'GATHERED_NUMBERS', limit)
    torch.manual_seed(0)
    x = torch.randn(2, 13, 12, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(36, 12, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(36, dtype=torch.float64, requires_grad=True) if with_bias else None
    leaves = (x, weight, bias) if with_bias else (x, weight)
    index = top_k_columns(torch.randn(2, 3, 13), 0.4)[0]
    qkv = torch.nn.functional.linear(x, weight, bias).view(2, 13, 3, 3, 4)
    after = torch.stack(gather_kv(qkv, index))
    before = torch.stack(project_kept_kv(
        x, index, weight[12:], None if bias is None else bias[12:]))
    torch.testing.assert_close(before, after)
    cotangent = torch.randn_like(after)
    for want, got in zip(torch.autograd.grad(after, leaves, cotangent),
                         torch.autograd.grad(before, leaves, cotangent), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
@pytest.mark.parametrize('form', ['mask', 'channels'])
@pytest.mark.parametrize('scale', [1.0, 8.0])
def test_half_precision_keeps_the_bias_accurate(dtype, form, scale):
    """With q = k = 0 the weights are softmax(b): what is left is the error of bias and values."""
    n = 1025
    g = torch.Generator(torch.get_default_device()).manual_seed(0)
    b = torch.randn(1, 2, n, generator=g) * scale + 100
    v = torch.ones(1, 2, n, 64, dtype=dtype) * torch.linspace(0, 1, n)[:, None].to(dtype)
    zero = torch.zeros(1, 2, 3, 64, dtype=dtype)
    got = key_bias_attention(zero, torch.zeros_like(v), v, b, form=form).double()
    want = b.double().softmax(-1)[:, :, None] @ v.double()
    assert (got - want).abs().max() < torch.finfo(dtype).eps  # a bias in bf16 alone: 30 times that


@pytest.mark.parametrize('dtype, digits', [(torch.bfloat16, 22), (torch.float16, 20)])
def test_split_bias_restores_fp32(dtype, digits):
    b = -torch.rand(1000) * 30 - 0.01
    total = sum(part.double() for part in _split(b, dtype))
    assert ((total - b.double()) / b.double()).abs().max() < 2.0 ** -digits


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize('form', ['mask', 'channels'])
def test_huge_biases_stay_finite(dtype, form):
    qkv, b = make(1, 2, 64, 16, dtype, 'extreme')
    out, grad, bias_grad = gradients(
        lambda t, b: key_bias_attention(*heads_first(t), b, form=form), qkv, b)
    assert all(t.isfinite().all() for t in (out, grad, bias_grad))
    double, _ = make(1, 2, 64, 16, torch.float64, 'extreme')
    want = reference_key_bias_attention(*heads_first(double), b.double())[0]
    torch.testing.assert_close(
        out.double(), want, rtol=0, atol=2e-3 if dtype == torch.float32 else 4e-2)


def test_n_1025_in_bf16_masked_against_gathered():
    qkv, b = make(1, 3, 1025, 64, torch.bfloat16)
    index, _ = top_k_columns(b, 0.1)
    keep = columns_to_mask(index, None, 1025)
    want = reference_key_bias_attention(*heads_first(qkv.double()), b.double(), keep)[0]
    for form in ('mask', 'channels'):
        masked = key_bias_attention(*heads_first(qkv), b, keep, form=form)
        gathered = key_bias_attention(
            heads_first(qkv)[0], *gather_kv(qkv, index), b.gather(-1, index), form=form)
        assert masked.dtype == torch.bfloat16
        for got in (masked, gathered):
            torch.testing.assert_close(got.double(), want, rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize('bias', ['random', 'equal', 'extreme'])
def test_query_key_free_equals_attention_without_logits(bias):
    qkv, b = make(2, 3, 19, 4, bias=bias)
    index, _ = top_k_columns(b, 0.4)
    keep = columns_to_mask(index, None, 19)

    def reference(t, b):
        q, k, v = heads_first(t)
        return reference_key_bias_attention(q * 0, k * 0, v, b, keep)[0]

    def fast(t, b):
        return query_key_free_attention(heads_first(t)[2], b, keep).expand(-1, -1, 19, -1)

    for got, want in zip(gradients(fast, qkv, b), gradients(reference, qkv, b), strict=True):
        torch.testing.assert_close(got, want)


def test_query_dependent_bias_adds_to_the_key_bias():
    qkv, b = make(2, 2, 11, 4)
    extra = torch.randn(2, 2, 11, 11, dtype=torch.float64)
    q, k, v = heads_first(qkv)
    want = (q @ k.transpose(-2, -1) / 2 + b[:, :, None] + extra).softmax(-1) @ v
    torch.testing.assert_close(key_bias_attention(q, k, v, b, logit_bias=extra), want)


def test_gradcheck_of_the_channel_form():
    qkv, b = make(1, 1, 5, 3)
    inputs = [t.clone().requires_grad_() for t in (*heads_first(qkv), b - b.amax(-1, True))]
    assert torch.autograd.gradcheck(
        lambda q, k, v, b: channel_bias_attention(q, k, v, b), inputs)


def test_unknown_form():
    q = torch.zeros(1, 1, 2, 4)
    with pytest.raises(ValueError, match='form'):
        key_bias_attention(q, q, q, form='fast')
