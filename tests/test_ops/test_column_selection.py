"""Selection rules against their definitions and the numbers worked out from the paper."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmext.ops import (
    columns_to_mask,
    keep_ratio_schedule,
    num_kept,
    threshold_columns,
    top_k_columns,
)

SCHEDULE = {  # k of the schedule .9 to .1 over 12 layers
    197: [177, 162, 148, 134, 119, 105, 91, 77, 62, 48, 34, 19],
    4096: [3686, 3388, 3090, 2792, 2494, 2196, 1899, 1601, 1303, 1005, 707, 409],
}


@pytest.mark.parametrize('n', SCHEDULE)
def test_schedule_gives_the_papers_counts(n):
    assert [num_kept(r, n) for r in keep_ratio_schedule((0.9, 0.1), 12)] == SCHEDULE[n]


@pytest.mark.parametrize('n, ratio, k', [(100, 0.9 + (0.1 - 0.9) * 11 / 11, 10), (100, 0.29, 29),
                                         (3, 0.1, 1), (7, 1, 7), (1, 0.5, 1)])
def test_floor_survives_rounding_errors(n, ratio, k):
    assert num_kept(ratio, n) == k


def test_schedule_forms():
    assert keep_ratio_schedule(None, 3) == [None] * 3
    assert keep_ratio_schedule(0.5, 3) == [0.5] * 3
    assert keep_ratio_schedule([0.2, None, 1], 3) == [0.2, None, 1.0]
    assert keep_ratio_schedule((0.9, 0.1), 2) == [0.9, 0.1]
    assert keep_ratio_schedule((0.9, 0.1), 1) == [0.9]


@pytest.mark.parametrize('value', [0, -0.1, 1.01, float('nan'), True, 'half', (0.9, 0.5, 0.1),
                                   (0.9, 0), (0.9, None), []])
def test_bad_ratios_name_themselves(value):
    with pytest.raises(ValueError, match='keep_ratio'):
        keep_ratio_schedule(value, 12)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.floats(0.01, 1), st.integers(0, 2 ** 16), st.booleans())
def test_top_k_is_the_k_largest(n, ratio, seed, ties):
    g = torch.Generator(torch.get_default_device()).manual_seed(seed)
    bias = torch.randn(2, 3, n, generator=g)
    bias = bias.round() if ties else bias
    index, kept = top_k_columns(bias, ratio)
    k = num_kept(ratio, n)
    mask = columns_to_mask(index, kept, n)
    assert kept is None and (mask.sum(-1) == k).all()
    smallest = bias.masked_fill(~mask, torch.inf).amin(-1)
    largest_left = bias.masked_fill(mask, -torch.inf).amax(-1)
    assert (smallest >= largest_left).all()


def test_valid_tokens_alone_are_counted_and_kept():
    torch.manual_seed(0)
    bias = torch.randn(3, 2, 20)
    valid = torch.zeros(3, 20, dtype=torch.bool)
    for sample, count in enumerate((20, 11, 1)):
        valid[sample, torch.randperm(20)[:count]] = True
    bias = torch.where(valid[:, None], bias, bias + 10)  # padding would win
    index, kept = top_k_columns(bias, 0.3, valid)
    mask = columns_to_mask(index, kept, 20)
    assert mask.sum(-1).tolist() == [[6, 6], [3, 3], [1, 1]]
    assert not (mask & ~valid[:, None]).any()
    for sample, k in enumerate((6, 3, 1)):
        real = bias[sample].masked_fill(~valid[sample], -torch.inf)
        expected = torch.zeros_like(real, dtype=torch.bool).scatter(1, real.topk(k)[1], True)
        assert torch.equal(mask[sample], expected)


def test_protected_columns_come_first_within_k():
    bias = torch.arange(10.).expand(1, 2, 10)
    index, kept = top_k_columns(bias, 0.3, num_protected=1)
    assert sorted(index[0, 0].tolist()) == [0, 8, 9] and kept is None
    assert top_k_columns(bias, 0.05, num_protected=2)[0].shape[-1] == 2


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.floats(0.01, 1), st.integers(0, 2 ** 16))
def test_threshold_is_the_smallest_prefix(n, tau, seed):
    g = torch.Generator(torch.get_default_device()).manual_seed(seed)
    bias = torch.randn(1, 2, n, generator=g).double() * 3
    index, kept = threshold_columns(bias, tau)
    mask = columns_to_mask(index, kept, n)
    mass = bias.softmax(-1)
    for h in range(2):
        total, chosen = 0.0, set()
        for j in mass[0, h].argsort(descending=True).tolist():
            if total >= tau - 1e-6 and tau < 1:
                break
            chosen.add(j)
            total += mass[0, h, j].item()
        got = set(mask[0, h].nonzero().flatten().tolist())
        assert got == chosen or abs(total - tau) < 2e-6


def test_threshold_with_padding_and_protection():
    bias = torch.tensor([[[0.0, 5.0, 9.0, 1.0, 4.0]]])
    valid = torch.tensor([[True, True, False, True, True]])
    mask = columns_to_mask(*threshold_columns(bias, 0.5, valid), 5)
    assert mask.flatten().tolist() == [False, True, False, False, False]
    mask = columns_to_mask(*threshold_columns(bias, 0.5, valid, num_protected=1), 5)
    assert mask[0, 0, 0] and not mask[0, 0, 2]
    mask = columns_to_mask(*threshold_columns(bias, 1.0, valid), 5)
    assert torch.equal(mask[0, 0], valid[0])


def test_choice_carries_no_gradient():
    bias = torch.randn(1, 1, 8, requires_grad=True)
    assert not top_k_columns(bias, 0.5)[0].requires_grad
    assert not threshold_columns(bias, 0.5)[1].requires_grad
