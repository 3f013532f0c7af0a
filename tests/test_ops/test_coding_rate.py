"""Coding rates against closed forms and N x N log-determinants."""

import math

import pytest
import torch

from mmext.ops import coding_rate_ceiling, exact_coding_rate, variational_coding_rate


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
