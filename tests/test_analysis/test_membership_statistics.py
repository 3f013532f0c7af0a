import math

import numpy as np
import pytest
import torch

from mmext.analysis.membership import layer_coding_rates, support_sizes, to_grid
from mmext.layers import DMSA


def test_rates_of_three_tokens_by_hand():
    """One head, P = 2, unit tokens e1, e1, e2, eps^2 = .5, so P / eps^2 = 4; Pi = (1, .5, .5).

    n_1 = 2, second moments (1.5, .5) / 2, rate 2/(2*3) * (ln(1 + 4*.75) + ln(1 + 4*.25)); the
    gram matrix is diagonal, so the exact rate is the same; CRATE: 1/2 (ln(1 + 8/3) + ln(1 + 4/3)).
    """
    v = torch.tensor([[2., 0], [5, 0], [0, 3]])[None, None]
    tensors = {'v': v, 'membership': torch.tensor([1, .5, .5])[None, None]}
    found = layer_coding_rates(tensors, eps2=.5)
    expected = 2 / 6 * (math.log(4) + math.log(2))
    assert found['variational'].item() == pytest.approx(expected, abs=1e-6)
    assert found['exact'].item() == pytest.approx(expected, abs=1e-6)
    assert found['crate'].item() == pytest.approx(
        .5 * (math.log(11 / 3) + math.log(7 / 3)), abs=1e-6)


def test_gate_narrows_the_subspace():
    """A gate of (1, 0, 0) leaves the first token: moments (1, 0) / 2."""
    v = torch.tensor([[2., 0], [5, 0], [0, 3]])[None, None]
    tensors = {'v': v, 'membership': torch.tensor([1, .5, .5])[None, None],
               'gate': torch.tensor([1., 0, 0])[None, None]}
    found = layer_coding_rates(tensors, eps2=.5)['variational'].item()
    assert found == pytest.approx(2 / 6 * math.log(3), abs=1e-6)
    full = layer_coding_rates(tensors, eps2=.5, use_gate=False)['variational'].item()
    assert full == pytest.approx(2 / 6 * (math.log(4) + math.log(2)), abs=1e-6)


def test_published_curve_starts_below_its_ceiling():
    """Isotropic tokens reach 0.5 * 48 * ln(101) = 110.763, where ToST's published curve starts."""
    torch.manual_seed(0)
    v = torch.randn(1, 8, 4000, 48)
    pi = torch.full((1, 8, 4000), 1 / 8)
    rate = layer_coding_rates({'v': v, 'membership': pi})['variational'].item()
    assert 110.7 < rate < 110.763


def test_support_by_hand_and_of_a_soft_threshold():
    gate = torch.tensor([[[.5, 0, 1], [.5, 1, 0]]])
    of_head, of_token = support_sizes(gate)
    assert of_head.tolist() == [[2, 2]] and of_token.tolist() == [[2, 1, 1]]
    torch.manual_seed(0)
    layer = DMSA(16, 4)
    torch.nn.init.normal_(layer.membership.weight)
    gate = layer.forward_intermediates(torch.randn(2, 9, 16))[1]['gate']
    of_head, of_token = support_sizes(gate)
    assert of_token.min() >= 1 and of_token.max() <= 4 and of_token.float().mean() < 4
    assert of_head.sum() == of_token.sum()


def test_grid_drops_prefix_tokens():
    grid = to_grid(torch.arange(7)[None], (2, 3))
    np.testing.assert_array_equal(grid, [[[1, 2, 3], [4, 5, 6]]])
