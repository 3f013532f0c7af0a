"""Folded TSSA and DMSA against their plain equations: values, gradients, precision, identities."""

import pytest
import torch

from mmext.ops import soft_threshold, variational_coding_rate
from mmext.ops.token_statistics import (
    dmsa,
    dmsa_reference,
    membership_logits,
    memberships,
    statistics_attention,
    token_energy,
    tssa,
    tssa_reference,
)

KNOBS = [
    dict(),
    dict(pi_norm='st'),
    dict(pi_norm='raw'),
    dict(pi_norm='sigmoid', gate_act='relu'),
    dict(pi_norm='softplus', gate_act='gelu'),
    dict(gate_act='sigmoid'),
    dict(gate_act='identity'),
    dict(gate_act='shrink', shrink_lambda=0.3),
    dict(gate_act='none'),
    dict(sparse_dim='token'),
    dict(sparse_dim='both'),
    dict(gate_power=2),
    dict(gate_power=0),
    dict(gate_scope='output'),
    dict(sign=1),
]


def strided(*shape, **kwargs):
    """(B, H, N, P) laid out as (B, N, H, P), what a projection gives."""
    b, h, n, p = shape
    return torch.randn(b, n, h, p, **kwargs).transpose(1, 2)


@pytest.mark.parametrize('knobs', KNOBS, ids=str)
def test_dmsa_equals_reference(knobs):
    torch.manual_seed(0)
    v = strided(2, 3, 11, 4, dtype=torch.float64).requires_grad_()
    logits = torch.randn(2, 3, 11, dtype=torch.float64, requires_grad=True)
    weight = torch.randn_like(v)
    out, _ = dmsa(v, logits, **knobs)
    expected = dmsa_reference(v, logits, **knobs)
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-12)
    inputs = (v, logits)
    grads = torch.autograd.grad((out * weight).sum(), inputs)
    expected_grads = torch.autograd.grad((expected * weight).sum(), inputs)
    for grad, ref in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(grad, ref, rtol=1e-8, atol=1e-11)


def test_dmsa_gradcheck():
    torch.manual_seed(1)
    v = strided(1, 2, 5, 2, dtype=torch.float64).requires_grad_()
    logits = torch.randn(1, 2, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *a: dmsa(*a)[0], (v, logits))


@pytest.mark.parametrize('shape', [(1, 1, 1, 1), (2, 3, 1, 4), (1, 4, 49, 12), (3, 2, 600, 8)])
def test_tssa_equals_reference(shape):
    torch.manual_seed(2)
    v = strided(*shape, dtype=torch.float64).requires_grad_()
    temp = torch.rand(shape[1], 1, dtype=torch.float64).requires_grad_()
    weight = torch.randn_like(v)
    out, _ = tssa(v, temp)
    expected = tssa_reference(v, temp)
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-12)
    grads = torch.autograd.grad((out * weight).sum(), (v, temp))
    expected_grads = torch.autograd.grad((expected * weight).sum(), (v, temp))
    for grad, ref in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(grad, ref, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize('op', ['dmsa', 'tssa'])
def test_chunks_agree(op, monkeypatch):
    """Many small slices of the token axis give what one gives."""
    from mmext.ops import token_statistics

    torch.manual_seed(3)
    v = strided(2, 4, 100, 8, dtype=torch.float64).requires_grad_()
    aux = torch.randn((2, 4, 100) if op == 'dmsa' else (4, 1), dtype=torch.float64,
                      requires_grad=True)

    def run():
        out, _ = getattr(token_statistics, op)(v, aux)
        return out, *torch.autograd.grad(out.square().sum(), (v, aux))

    whole = run()
    monkeypatch.setattr(token_statistics, '_chunks', lambda v, axis=2: [
        slice(s, min(s + 7, v.shape[axis])) for s in range(0, v.shape[axis], 7)])
    for a, b in zip(run(), whole, strict=True):
        torch.testing.assert_close(a, b)


def test_dropout_factors_scale_the_shrinkage():
    torch.manual_seed(4)
    v = strided(2, 3, 6, 4, dtype=torch.float64).requires_grad_()
    weights, coef = torch.rand(2, 2, 3, 6, dtype=torch.float64).requires_grad_().unbind()
    keep = torch.bernoulli(torch.full((2, 3, 4), .5, dtype=torch.float64)) * 2
    out, m = statistics_attention(v, weights, coef, keep)
    moment = (weights[..., None] * v**2).sum(2)
    torch.testing.assert_close(m, moment)
    expected = coef[..., None] * v * (keep / (1 + moment))[:, :, None]
    torch.testing.assert_close(out, expected)
    grad = torch.autograd.grad(out.square().sum(), (v, weights, coef))
    ref = torch.autograd.grad(expected.square().sum(), (v, weights, coef))
    for a, b in zip(grad, ref, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize('knobs', [dict(), dict(sparse_dim='token'), dict(sparse_dim='both'),
                                   dict(pi_norm='sigmoid')], ids=str)
def test_valid_equals_cutting_the_padding_off(knobs):
    torch.manual_seed(5)
    v = strided(2, 3, 10, 4, dtype=torch.float64).requires_grad_()
    logits = torch.randn(2, 3, 10, dtype=torch.float64, requires_grad=True)
    temp = torch.rand(3, 1, dtype=torch.float64)
    valid = torch.zeros(2, 10, dtype=torch.bool)
    valid[:, :7] = True
    for masked, cut in (
        (dmsa(v, logits, valid=valid, **knobs)[0], dmsa(v[:, :, :7], logits[..., :7], **knobs)[0]),
        (tssa(v, temp, valid=valid)[0], tssa(v[:, :, :7], temp)[0])):
        torch.testing.assert_close(masked[:, :, :7], cut)
        assert not masked[:, :, 7:].any()
        grad, = torch.autograd.grad(masked.square().sum(), v, retain_graph=True)
        ref, = torch.autograd.grad(cut.square().sum(), v, retain_graph=True)
        torch.testing.assert_close(grad, ref)


def test_inplace_inference_equals_training_path():
    torch.manual_seed(6)
    v, logits = strided(2, 3, 20, 4), torch.randn(2, 3, 20)
    expected = dmsa(v.clone().requires_grad_(), logits)[0]
    with torch.no_grad():
        kept = v.clone()
        torch.testing.assert_close(dmsa(v, logits)[0], expected)
        assert torch.equal(v, kept)
        out = dmsa(v, logits, inplace=True)[0]
    torch.testing.assert_close(out, expected)
    assert out.data_ptr() == v.data_ptr()


# ------------------------------------------------------------------------------- identities
@pytest.mark.parametrize('gated', [True, False])
def test_operator_is_minus_the_gradient_of_the_coding_rate(gated):
    """A.5 of the derivation: gate_power 2 and a tied output basis, Pi and G held fixed."""
    torch.manual_seed(7)
    n, heads, p = 13, 3, 4
    dim = heads * p
    z = torch.randn(1, n, dim, dtype=torch.float64, requires_grad=True)
    basis = torch.randn(dim, dim, dtype=torch.float64)
    logits = torch.randn(1, heads, n, dtype=torch.float64)
    pi = logits.softmax(1)
    gate = soft_threshold(logits, 1) if gated else torch.ones_like(pi)
    v = (z @ basis.T).unflatten(-1, (heads, p)).transpose(1, 2)
    # sqrt(scale) is absorbed in the basis: scale 1
    rate = variational_coding_rate(v, pi, gate, normalize=None, scale=1.)
    grad, = torch.autograd.grad(rate.sum(), z)
    y, _ = dmsa(v.detach(), logits, **(dict(gate_power=2) if gated else dict(gate_act='none')))
    operator = y.transpose(1, 2).flatten(2) @ basis / n
    torch.testing.assert_close(operator, -grad, rtol=1e-6, atol=1e-9)


def test_tssa_is_minus_the_gradient_of_the_coding_rate():
    torch.manual_seed(8)
    n, heads, p = 13, 3, 4
    z = torch.randn(1, n, heads * p, dtype=torch.float64, requires_grad=True)
    basis = torch.randn(heads * p, heads * p, dtype=torch.float64)
    v = (z @ basis.T).unflatten(-1, (heads, p)).transpose(1, 2)
    y, stats = tssa(v.detach(), torch.ones(heads, 1, dtype=torch.float64))
    rate = variational_coding_rate(v, stats['membership'], normalize=None, scale=1.)
    grad, = torch.autograd.grad(rate.sum(), z)
    torch.testing.assert_close(y.transpose(1, 2).flatten(2) @ basis / n, -grad,
                               rtol=1e-6, atol=1e-9)


# ------------------------------------------------------------------------------- precision
INPUTS = {
    'normal': lambda n: torch.randn(1, n, 4, 8),
    'x1e3': lambda n: torch.randn(1, n, 4, 8) * 1e3,
    'zeros': lambda n: torch.zeros(1, n, 4, 8),
    'constant': lambda n: torch.randn(1, 1, 4, 8).expand(1, n, 4, 8).contiguous(),
    'tiny': lambda n: torch.randn(1, n, 4, 8) * 1e-6,
}


@pytest.mark.parametrize('kind', INPUTS)
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
@pytest.mark.parametrize('op', ['dmsa', 'tssa'])
@pytest.mark.parametrize('n', [50, 65536])
def test_half_precision_is_close_to_fp32(op, dtype, kind, n):
    torch.manual_seed(9)
    v = INPUTS[kind](n).to(dtype).transpose(1, 2)
    aux = torch.randn(1, 4, n) if op == 'dmsa' else torch.ones(4, 1)
    run = dmsa if op == 'dmsa' else tssa
    # a loss scale as mixed-precision training has it, so that gradients are normal fp16 numbers
    weight = torch.randn_like(v)

    def result(v):
        v = v.detach().requires_grad_()
        out, _ = run(v, aux)
        return out, torch.autograd.grad((out * weight.to(out.dtype)).sum(dtype=torch.float32), v)[0]

    out, grad = result(v)
    expected, expected_grad = result(v.float())
    assert out.dtype == grad.dtype == dtype
    eps = torch.finfo(dtype).eps
    for half, full in ((out, expected), (grad, expected_grad)):
        assert half.isfinite().all() and full.isfinite().all()
        # one rounding to the output type (6e-8 is the smallest fp16 step); TSSA's gradient is the
        # sum of two such roundings, which may cancel
        summed = op == 'tssa' and half is grad
        atol = max(6e-8, eps * full.abs().max().item() if summed else 0)
        torch.testing.assert_close(half.float(), full, rtol=2 * eps, atol=atol)


@pytest.mark.parametrize('kind', ['zeros', 'constant', 'tiny'])
def test_degenerate_inputs_have_finite_fp32_gradients(kind):
    v = INPUTS[kind](30).transpose(1, 2).requires_grad_()
    temp = torch.ones(4, 1, requires_grad=True)
    tssa(v, temp)[0].sum().backward()
    assert v.grad.isfinite().all() and temp.grad.isfinite().all()
    if kind != 'zeros':  # autograd of the plain equation at 0 is NaN, the operator's is 0
        ref = v.detach().requires_grad_()
        tssa_reference(ref, torch.ones(4, 1)).sum().backward()
        torch.testing.assert_close(v.grad, ref.grad, rtol=1e-3, atol=1e-5)


def test_membership_logits_keep_fp32_in_half_precision():
    torch.manual_seed(10)
    x, weight = (torch.randn(2, 30, 64) * 1e3).bfloat16(), torch.randn(4, 64).bfloat16()
    x.requires_grad_(), weight.requires_grad_()
    out = membership_logits(x, weight)
    expected = torch.einsum('bnc,hc->bhn', x.double(), weight.double())
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-1)
    grad = torch.autograd.grad(out.sin().sum(), (x, weight))
    ref = torch.autograd.grad(
        torch.einsum('bnc,hc->bhn', x.float(), weight.float()).sin().sum(), (x, weight))
    for a, b in zip(grad, ref, strict=True):
        torch.testing.assert_close(a, b, rtol=0.2, atol=0.2 * b.abs().max().item())


def test_token_energy_equals_normalize():
    torch.manual_seed(11)
    v = strided(2, 3, 9, 5, dtype=torch.float64).requires_grad_()
    expected = torch.nn.functional.normalize(v, dim=-2).square().sum(-1)
    torch.testing.assert_close(token_energy(v), expected)
    assert torch.autograd.gradcheck(token_energy, v)


def test_raw_memberships_stay_finite_when_they_cancel():
    v = strided(1, 2, 6, 3).requires_grad_()
    logits = torch.tensor([1., -1.]).repeat(3).expand(1, 2, 6).contiguous().requires_grad_()
    out, stats = dmsa(v, logits, pi_norm='raw')
    out.sum().backward()
    assert (stats['second_moment'] >= 0).all()
    assert out.isfinite().all() and v.grad.isfinite().all() and logits.grad.isfinite().all()


def test_unknown_options_are_named():
    v, logits = strided(1, 2, 6, 3), torch.randn(1, 2, 6)
    for knobs in (dict(pi_norm='soft'), dict(gate_act='tanh'), dict(sparse_dim='channel'),
                  dict(gate_power=3), dict(gate_scope='value'), dict(sign=0)):
        name, value = next(iter(knobs.items()))
        with pytest.raises(ValueError, match=f'{name}={value!r}'):
            dmsa(v, logits, **knobs)
    with pytest.raises(ValueError, match='no effect'):
        dmsa(v, logits, sparse_dim='token', gate_act='relu')


@pytest.mark.parametrize('sparse_dim', ['head', 'token', 'both'])
@pytest.mark.parametrize('gate_act', ['st', 'sigmoid', 'none'])
def test_options_without_effect_are_refused_and_no_others(monkeypatch, sparse_dim, gate_act):
    """By a run of each pair: an accepted one gives what no other gives, a refused one no gate."""
    from mmext.ops import token_statistics
    torch.manual_seed(13)
    v, logits = strided(1, 3, 6, 4), torch.randn(1, 3, 6)
    pairs = [(power, scope) for power in (0, 1, 2) for scope in ('subspace', 'output')]
    accepted, outputs = [], {}
    for pair in pairs:
        knobs = dict(zip(('gate_power', 'gate_scope'), pair, strict=True), gate_act=gate_act,
                     sparse_dim=sparse_dim)
        try:
            dmsa(v, logits, **knobs)
            accepted.append(pair)
        except ValueError as error:
            assert 'gate' in str(error)
        with monkeypatch.context() as patch:
            patch.setattr(token_statistics, 'check_options', lambda *args: None)
            outputs[pair] = dmsa(v, logits, **knobs)[0]
    if sparse_dim != 'head' and gate_act != 'st':
        assert not accepted  # sparse_dim fixes the gate itself
        return
    plain = dict(gate_act='none') if sparse_dim == 'head' else dict(sparse_dim='token')
    ungated = dmsa(v, logits, **plain)[0]
    if gate_act == 'none' or sparse_dim == 'token':
        assert accepted == [(1, 'subspace')]
    else:
        different = [ungated, *(outputs[pair] for pair in accepted)]
        for i, one in enumerate(different):
            assert all((one - other).abs().max() > 1e-4 for other in different[:i])
    for pair in set(pairs) - set(accepted):
        assert torch.equal(outputs[pair], ungated), pair


def test_token_soft_threshold_is_over_tokens():
    logits = torch.randn(2, 3, 20)
    pi, gate = memberships(logits, sparse_dim='both')
    torch.testing.assert_close(pi.sum(-1), torch.ones(2, 3))
    torch.testing.assert_close(gate.sum(1), torch.ones(2, 20))
    assert memberships(logits, sparse_dim='token')[1] is None


def test_compiled_equals_eager():
    torch.manual_seed(12)
    v = strided(1, 2, 30, 4).requires_grad_()
    logits = torch.randn(1, 2, 30, requires_grad=True)

    def run(v, logits):
        return dmsa(v, logits)[0] + tssa(v, torch.ones(2, 1))[0]

    compiled = torch.compile(run, fullgraph=True, backend='aot_eager')
    out, expected = compiled(v, logits), run(v, logits)
    torch.testing.assert_close(out, expected)
    grad = torch.autograd.grad(out.square().sum(), (v, logits))
    ref = torch.autograd.grad(expected.square().sum(), (v, logits))
    for a, b in zip(grad, ref, strict=True):
        torch.testing.assert_close(a, b)
