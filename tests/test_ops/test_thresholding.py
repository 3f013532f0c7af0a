"""Soft threshold against a sort-free (bisection) and a brute-force (all supports) reference."""

import itertools

import pytest
import torch

from mmext.ops import soft_threshold


def bisection(s):
    """Simplex projection of a vector by bisection on kappa, fp64."""
    low, high = s.max() - 1, s.max()
    for _ in range(80):
        kappa = (low + high) / 2
        low, high = (kappa, high) if (s - kappa).clamp_min(0).sum() > 1 else (low, kappa)
    return (s - (low + high) / 2).clamp_min(0)


def brute_force(s):
    """The feasible point nearest to s over all supports, fp64."""
    best, best_distance = None, float('inf')
    for size in range(1, len(s) + 1):
        for support in itertools.combinations(range(len(s)), size):
            point = torch.zeros_like(s)
            index = list(support)
            point[index] = s[index] - (s[index].sum() - 1) / size
            distance = (point - s).square().sum()
            if (point >= 0).all() and distance < best_distance:
                best, best_distance = point, distance
    return best


@pytest.mark.parametrize('scale', [0.01, 1., 30.])
def test_equals_bisection(scale):
    torch.manual_seed(0)
    s = torch.randn(20, 37, dtype=torch.float64) * scale
    expected = torch.stack([bisection(row) for row in s])
    torch.testing.assert_close(soft_threshold(s, 1), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        soft_threshold(s.float(), 1), expected.float(), rtol=1e-5, atol=1e-6 * max(1, scale))


@pytest.mark.parametrize('n', [1, 2, 4, 7])
def test_equals_brute_force(n):
    torch.manual_seed(n)
    for _ in range(15):
        s = torch.randn(n, dtype=torch.float64)
        torch.testing.assert_close(soft_threshold(s, 0), brute_force(s), rtol=1e-9, atol=1e-12)


def test_ties():
    s = torch.tensor([[0., 0., 0., 0.], [1., 1., 0., 0.], [2., 2., 2., -1.]], dtype=torch.float64)
    expected = torch.tensor([[.25] * 4, [.5, .5, 0, 0], [1 / 3] * 3 + [0]], dtype=torch.float64)
    torch.testing.assert_close(soft_threshold(s, -1), expected)


@pytest.mark.parametrize('dim', [0, 1, 2, -1])
def test_any_dim_sums_to_one_with_exact_zeros(dim):
    torch.manual_seed(1)
    out = soft_threshold(torch.randn(5, 6, 7) * 4, dim)
    torch.testing.assert_close(out.sum(dim), torch.ones_like(out.sum(dim)))
    assert (out == 0).any() and (out >= 0).all()


def test_fixed_point_on_the_simplex():
    p = torch.randn(3, 9, dtype=torch.float64).softmax(-1)
    torch.testing.assert_close(soft_threshold(p, -1), p)


def test_invariant_to_a_shift():
    s = torch.randn(4, 8, dtype=torch.float64)
    torch.testing.assert_close(soft_threshold(s + 1e3, 1), soft_threshold(s, 1))


def test_gradient():
    torch.manual_seed(2)
    s = torch.randn(3, 6, 4, dtype=torch.float64, requires_grad=True)
    for dim in (0, 1, -1):
        assert torch.autograd.gradcheck(lambda x, d=dim: soft_threshold(x, d), s)


def test_jacobian_is_centring_on_the_support():
    s = torch.randn(8, dtype=torch.float64)
    support = (soft_threshold(s, 0) > 0).double()
    expected = support.diag() - torch.outer(support, support) / support.sum()
    jacobian = torch.autograd.functional.jacobian(lambda x: soft_threshold(x, 0), s)
    torch.testing.assert_close(jacobian, expected)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
@pytest.mark.parametrize('scale', [0., 1., 1e3])
def test_half_precision(dtype, scale):
    torch.manual_seed(3)
    s = (torch.randn(2, 8, 50) * scale).to(dtype)
    out = soft_threshold(s.requires_grad_(), 1)
    expected = soft_threshold(s.float(), 1)
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), expected, rtol=1e-2, atol=1e-4)
    out.float().square().sum().backward()
    assert s.grad.isfinite().all()


def test_long_nearly_uniform_rows_still_sum_to_one():
    torch.manual_seed(4)
    out = soft_threshold(torch.randn(2, 65536) * 1e-6, 1)
    torch.testing.assert_close(out.sum(1), torch.ones(2), rtol=1e-5, atol=0)


def test_minus_infinity_is_masked():
    s = torch.tensor([[1., float('-inf'), 0.5]], requires_grad=True)
    out = soft_threshold(s, 1)
    torch.testing.assert_close(out.detach(), torch.tensor([[.75, 0., .25]]))
    out[0, 0].backward()
    torch.testing.assert_close(s.grad, torch.tensor([[.5, 0., -.5]]))


def test_integers_are_refused():
    with pytest.raises(TypeError, match='floating-point'):
        soft_threshold(torch.arange(4), 0)


def test_compiled_equals_eager():
    torch.manual_seed(5)
    s = torch.randn(2, 4, 30, requires_grad=True)
    weight = torch.randn_like(s)
    compiled = torch.compile(lambda x: soft_threshold(x, 1), fullgraph=True, backend='aot_eager')
    out = compiled(s)
    grad, = torch.autograd.grad((out * weight).sum(), s)
    eager = soft_threshold(s, 1)
    torch.testing.assert_close(out, eager)
    torch.testing.assert_close(grad, torch.autograd.grad((eager * weight).sum(), s)[0])
