"""Coding rates against closed forms and N x N log-determinants."""

import math

import pytest
import torch

from mmext.ops import (
    coding_rate_ceiling,
    exact_coding_rate,
    rate_reduction,
    rate_reduction_reference,
    variational_coding_rate,
)


def test_published_ceiling():
    """Where ToST's published curve starts, P = 48."""
    assert coding_rate_ceiling(48) == pytest.approx(110.763, abs=5e-4)


def test_ceiling_is_reached_by_spread_tokens_and_by_no_others():
    torch.manual_seed(0)
    spread = torch.eye(48, dtype=torch.float64).expand(1, 4, 48, 48)
    pi = torch.full((1, 4, 48), .25, dtype=torch.float64)
    assert variational_coding_rate(spread, pi).item() == pytest.approx(coding_rate_ceiling(48))
    random = torch.randn(1, 4, 48, 48, dtype=torch.float64)
    assert variational_coding_rate(random, pi).item() < coding_rate_ceiling(48)


def test_variational_closed_form():
    torch.manual_seed(1)
    v, pi = torch.randn(2, 3, 7, 5).double(), torch.randn(2, 3, 7).double().softmax(1)
    gate = torch.rand(2, 3, 7).double()
    for b in range(2):
        total = 0.
        for k in range(3):
            n_k = pi[b, k].sum().item()
            for i in range(5):
                hat = v[b, k] / v[b, k].norm(dim=-1, keepdim=True) * gate[b, k][:, None]
                moment = sum(pi[b, k, j].item() * hat[j, i].item()**2 for j in range(7)) / n_k
                total += .5 * n_k / 7 * math.log(1 + 5 / .01 * moment)
        assert variational_coding_rate(v, pi, gate)[b].item() == pytest.approx(total)


def test_exact_rate_equals_n_by_n_determinant():
    torch.manual_seed(2)
    v = torch.randn(2, 3, 9, 4, dtype=torch.float64)
    hat = v / v.norm(dim=-1, keepdim=True)
    gram = torch.eye(9) + 4 / (9 * .01) * hat @ hat.transpose(-1, -2)
    torch.testing.assert_close(exact_coding_rate(v), .5 * torch.logdet(gram).sum(-1))


def test_variational_bounds_the_exact_rate():
    torch.manual_seed(3)
    v, pi = torch.randn(4, 3, 20, 6).double(), torch.randn(4, 3, 20).double().softmax(1)
    assert (variational_coding_rate(v, pi) >= exact_coding_rate(v, pi)).all()


@pytest.mark.parametrize('rate', [variational_coding_rate, exact_coding_rate])
@pytest.mark.parametrize('normalize', ['head', 'token', None])
def test_valid_equals_cutting_the_padding_off(rate, normalize):
    torch.manual_seed(4)
    v, pi = torch.randn(2, 3, 9, 4).double(), torch.rand(2, 3, 9).double()
    valid = torch.arange(9).expand(2, 9) < 6
    torch.testing.assert_close(
        rate(v, pi, normalize=normalize, valid=valid),
        rate(v[:, :, :6], pi[..., :6], normalize=normalize))


@pytest.mark.parametrize('rate', [variational_coding_rate, exact_coding_rate])
def test_autocast_changes_nothing(rate):
    torch.manual_seed(5)
    v, pi = torch.randn(2, 3, 50, 4), torch.rand(2, 3, 50)
    with torch.autocast(v.device.type, torch.bfloat16):
        reduced = rate(v, pi)
    assert torch.equal(reduced, rate(v, pi))


def test_unknown_normalization_is_named():
    with pytest.raises(ValueError, match="normalize='batch'"):
        variational_coding_rate(torch.randn(1, 1, 2, 2), torch.rand(1, 1, 2), normalize='batch')


def tokens_and_memberships(n, dim):
    torch.manual_seed(6)
    return (torch.randn(2, n, dim, dtype=torch.float64),
            torch.randn(2, 3, n, dtype=torch.float64).softmax(1))


@pytest.mark.parametrize('n, dim', [(5, 7), (9, 4), (6, 6)])
def test_rate_reduction_is_the_papers_term_by_term(n, dim):
    z, pi = tokens_and_memberships(n, dim)
    found = rate_reduction(z, pi)
    for value, expected in zip(found, rate_reduction_reference(z, pi), strict=True):
        torch.testing.assert_close(value, expected)
    assert (found.reduction > 0).all()  # log det is concave
    alone = rate_reduction(z, torch.ones_like(pi[:, :1]))
    torch.testing.assert_close(alone.reduction, torch.zeros_like(alone.whole))


def test_rate_reduction_of_orthogonal_classes_by_hand():
    """Tokens e1, e1, e2, hard classes, eps2 = .5 so C / eps2 = 4: R = (ln(1 + 8/3) + ln(1 + 4/3)) /
    2, and each class fills one axis: R^c = (2/3 ln 5 + 1/3 ln 5) / 2."""
    z = torch.tensor([[[2., 0], [5, 0], [0, 3]]], dtype=torch.float64)
    pi = torch.tensor([[[1., 1, 0], [0, 0, 1]]], dtype=torch.float64)
    whole, parts, reduction = rate_reduction(z, pi, eps2=.5, normalize=True)
    assert whole.item() == pytest.approx(.5 * (math.log(11 / 3) + math.log(7 / 3)))
    assert parts.item() == pytest.approx(.5 * math.log(5))
    assert reduction.item() == pytest.approx(whole.item() - parts.item())


@pytest.mark.parametrize('n, dim', [(5, 7), (9, 4)])
def test_gradients_of_the_rate_reduction_in_closed_form(n, dim):
    """dR/dZ = a (I + a Z Z^T)^-1 Z, a = C / (eps2 n); dR^c/dZ is the sum of the same over the
    classes with Z Diag(pi_k), weighted by n_k / n."""
    z, pi = tokens_and_memberships(n, dim)
    z.requires_grad_()
    whole, parts, _ = rate_reduction(z, pi)
    [of_whole] = torch.autograd.grad(whole.sum(), z, retain_graph=True)
    [of_parts] = torch.autograd.grad(parts.sum(), z)
    eye, columns = torch.eye(dim, dtype=torch.float64), z.detach().mT
    for b in range(2):
        a = dim / (.01 * n)
        expected = a * torch.linalg.solve(eye + a * columns[b] @ columns[b].T, columns[b])
        torch.testing.assert_close(of_whole[b].T, expected)
        expected = 0
        for pi_k in pi[b]:
            a = dim / (.01 * pi_k.sum())
            right = columns[b] * pi_k
            expected = expected + pi_k.sum() / n * a * torch.linalg.solve(
                eye + a * right @ columns[b].T, right)
        torch.testing.assert_close(of_parts[b].T, expected)
    assert torch.autograd.gradcheck(lambda z, pi: rate_reduction(z, pi).reduction,
                                    (z, pi.requires_grad_()))


def test_rate_reduction_of_padded_tokens_and_empty_memberships():
    z, pi = tokens_and_memberships(9, 4)
    valid = torch.arange(9).expand(2, 9) < 6
    for value, expected in zip(rate_reduction(z, pi, valid=valid),
                               rate_reduction(z[:, :6], pi[..., :6]), strict=True):
        torch.testing.assert_close(value, expected)
    z, pi = tokens_and_memberships(3, 4)
    pi[:, 0, 0] = 0
    rate_reduction(z, pi.requires_grad_()).reduction.sum().backward()
    assert pi.grad.isfinite().all()
