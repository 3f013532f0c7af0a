"""Cases of three tokens worked out by hand, and scipy."""

import math

import numpy as np
import pytest
import scipy.stats
import torch

from mmext.analysis import attention
from mmext.layers import BiasedAttention

ATTN = torch.tensor([[.5, .3, .2], [.1, .6, .3], [.2, .2, .6]])[None, None]
THIRDS = [1 / 3, 2 / 3, 1.]


def close(found, expected, tolerance=1e-6):
    np.testing.assert_allclose(np.asarray(found), expected, rtol=0, atol=tolerance)


def test_column_mean_is_the_attention_received():
    close(attention.column_mean(ATTN)[0, 0], [.8 / 3, 1.1 / 3, 1.1 / 3])


def test_oracle_gap_by_hand():
    """k=1: one set keeps column 1 or 2, 1.1/3; each query its best, (.5+.6+.6)/3. k=2: columns 1
    and 2, 2.2/3, against (.8+.9+.8)/3. k=3: everything."""
    found = attention.oracle_gap(ATTN, THIRDS)
    close(found['global'][0, 0], [1.1 / 3, 2.2 / 3, 1])
    close(found['query'][0, 0], [1.7 / 3, 2.5 / 3, 1])
    close(found['gap'][0, 0], [.2, .1, 0])


def test_gap_vanishes_where_all_queries_agree_and_is_never_negative():
    generator = torch.Generator().manual_seed(0)
    attn = torch.randn(2, 3, 20, 20, generator=generator).softmax(-1)
    assert (attention.oracle_gap(attn, [.9, .5, .1])['gap'] >= -1e-9).all()
    same = attn[:, :, :1].expand(-1, -1, 20, -1)
    close(attention.oracle_gap(same, [.9, .5, .1])['gap'], 0)


def test_query_oracle_in_chunks(monkeypatch):
    attn = torch.rand(2, 2, 7, 7).softmax(-1)
    whole = attention.query_retained_mass(attn, [.3, .8])
    assert whole.shape == (2, 2, 2)
    expected = attn.double().topk(2, -1).values.sum(-1).mean(-1)
    close(whole[..., 0], expected)
    monkeypatch.setattr(attention, 'CHUNK', 10)
    close(attention.query_retained_mass(attn, [.3, .8]), whole, 1e-15)


def test_mass_on_the_columns_of_the_bias():
    received, bias = torch.tensor([.5, .3, .2])[None, None], torch.tensor([0., 1, 2])[None, None]
    close(attention.retained_mass(received, bias, THIRDS)[0, 0], [.2, .5, 1])
    close(attention.retained_mass(received, received, THIRDS)[0, 0], [.5, .8, 1])


def test_overlap_by_hand():
    a, b = torch.tensor([3., 2, 1]), torch.tensor([1., 2, 3])
    close([attention.overlap(a, b, ratio) for ratio in THIRDS], [0, .5, 1])
    with pytest.raises(ValueError, match='keep_ratio=0'):
        attention.overlap(a, b, 0)


def test_pearson_by_hand_and_against_scipy():
    close(attention.pearson(torch.tensor([1., 2, 3]), torch.tensor([1., 3, 2])), .5)
    close(attention.pearson(torch.tensor([1., 2, 3]), torch.tensor([-2., -4, -6])), -1)
    a, b = torch.rand(4, 50) + 1e4, torch.rand(4, 50)
    expected = [scipy.stats.pearsonr(x.double(), y.double())[0] for x, y in zip(a, b, strict=True)]
    close(attention.pearson(a, b), expected, 1e-9)


def test_pearson_of_a_constant_is_nan():
    assert attention.pearson(torch.full((3,), .1), torch.tensor([1., 2, 4])).isnan()
    assert attention.pearson(torch.tensor([1., 2, 4]), torch.zeros(3)).isnan()


def test_bias_correlation_uses_logits_without_and_attention_with_bias():
    """The layer's own logits are zero but for the column 1 of head 0; b = (0, 1, 3)."""
    logits = torch.zeros(1, 1, 3, 3)
    logits[..., 1] = 2
    bias = torch.tensor([0., 1, 3])[None, None]
    attn = (logits + bias[:, :, None]).softmax(-1)
    found = attention.bias_correlation({'logits': logits, 'bias': bias, 'attn': attn})
    close(found['logits'], scipy.stats.pearsonr([0, 1, 3], [0, 2, 0])[0])
    weights = [math.exp(0), math.exp(3), math.exp(3)]
    close(found['attention'], scipy.stats.pearsonr([0, 1, 3], weights)[0])


def test_bias_share_by_hand():
    """Var(0, 1, 2) = 2/3; a row (0, 3, 0) has variance 2, a constant row none."""
    bias = torch.tensor([0., 1, 2])[None, None]
    rows = torch.tensor([0., 3, 0]).expand(1, 1, 3, 3)
    close(attention.bias_share({'logits': rows, 'bias': bias}), .25)
    constant = torch.tensor([[1.], [5], [9]]).expand(1, 1, 3, 3)
    close(attention.bias_share({'logits': constant, 'bias': bias}), 1)


def test_row_entropy():
    close(attention.row_entropy(ATTN)[0, 0],
          np.mean([scipy.stats.entropy(row) for row in ATTN[0, 0]]))
    close(attention.row_entropy(torch.full((1, 2, 3, 3), 1 / 3)), math.log(3))


def test_parts_of_a_real_layer_add_up_to_its_attention():
    torch.manual_seed(0)
    layer = BiasedAttention(8, 2).eval()
    tensors = layer.forward_intermediates(torch.randn(2, 3, 8))[1]
    total = tensors['logits'] + tensors['bias'][:, :, None]
    close(total.softmax(-1).detach(), tensors['attn'].detach())


def test_half_precision_is_summed_in_double():
    attn = torch.full((1, 1, 4096, 3), 1 / 3, dtype=torch.float16)
    close(attention.column_mean(attn), float(attn[0, 0, 0, 0]), 1e-12)
