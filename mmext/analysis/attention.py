"""What the key bias and the attention of a layer have to do with each other.

Pure functions on intermediates: logits, attn (B, H, N, N; rows are queries), bias (B, H, N).
Sums run in fp64 whatever the dtype; results are fp64, one value per image and head.
Source: "Exploiting Biases in Attention for Transformers" (2026), Fig. 3-9.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mmext.ops.column_selection import check_ratio, num_kept

CHUNK = 2**24  # elements of an N x N matrix that are sorted at a time


def column_mean(matrix: Tensor) -> Tensor:
    """(B, H, N, N) -> (B, H, N): mean over the queries; of ``attn`` it is received attention."""
    return matrix.mean(-2, dtype=torch.float64)


def pearson(a: Tensor, b: Tensor) -> Tensor:
    """Correlation over the last axis, (..., N) -> (...); nan where one of them is constant."""
    a, b = a.double(), b.double()
    scale = [x.abs().amax(-1).clamp_min(1e-300) for x in (a, b)]
    a, b = (x - x.mean(-1, keepdim=True) for x in (a, b))
    norms = [x.square().sum(-1).sqrt() for x in (a, b)]
    # rounding leaves a constant row with a spread of some 1e-16 of its value
    constant = (norms[0] < 1e-12 * scale[0]) | (norms[1] < 1e-12 * scale[1])
    r = (a * b).sum(-1) / (norms[0] * norms[1])
    return torch.where(constant, torch.nan, r).clamp(-1, 1)


def bias_correlation(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Pearson r of the bias over the N columns, each (B, H).

    ``logits``: with the column mean of the scaled q k^T, without bias (Fig. 5, 9);
    ``attention``: with the attention received, which the bias is part of (Fig. 6).
    """
    bias = tensors['bias']
    return {'logits': pearson(bias, column_mean(tensors['logits'])),
            'attention': pearson(bias, column_mean(tensors['attn']))}


def bias_share(tensors: dict[str, Tensor]) -> Tensor:
    """Share of the bias in the variance within a row of the logits, (B, H).

    Var(b) / (Var(b) + mean over rows of Var(q k^T)): what is constant over a row does not matter
    to the softmax and is left out. nan where both vanish.
    """
    bias = tensors['bias'].double().var(-1, correction=0)
    logits = torch.stack([row.double().var(-1, correction=0).mean(-1)
                          for row in tensors['logits'].flatten(0, 1)]).view_as(bias)
    return bias / (bias + logits)


def top_columns(score: Tensor, ratio: float) -> Tensor:
    """score (..., N) -> bool mask of the k = max(1, floor(ratio * N)) largest."""
    k = num_kept(check_ratio(ratio), score.shape[-1])
    mask = torch.zeros_like(score, dtype=torch.bool)
    return mask.scatter(-1, score.topk(k, -1).indices, True)


def overlap(a: Tensor, b: Tensor, ratio: float) -> Tensor:
    """Share of a's top-k that is in b's top-k, (..., N) -> (...); ``ratio`` by mere chance."""
    a, b = top_columns(a, ratio), top_columns(b, ratio)
    return (a & b).sum(-1).double() / a.sum(-1)


def retained_mass(received: Tensor, score: Tensor, ratios: Sequence[float]) -> Tensor:
    """Attention mass on the columns of largest score.

    Args:
        received: (B, H, N), attention received (``column_mean(attn)``), sums to 1.
        score: (B, H, N); the received attention itself gives the best query-independent choice,
            the bias the one that bias-pruned attention makes.

    Returns:
        (B, H, R).
    """
    order = score.argsort(-1, descending=True)
    mass = received.double().gather(-1, order).cumsum(-1)
    ks = [num_kept(check_ratio(ratio), score.shape[-1]) for ratio in ratios]
    return torch.stack([mass[..., k - 1] for k in ks], -1)


def query_retained_mass(attn: Tensor, ratios: Sequence[float]) -> Tensor:
    """Attention mass when every query keeps its own k largest columns: the oracle.

    Args:
        attn: (B, H, N, N).

    Returns:
        (B, H, R), the mean over the queries.
    """
    ks = [num_kept(check_ratio(ratio), attn.shape[-1]) for ratio in ratios]
    rows = attn.flatten(0, 2)
    parts = []
    for chunk in rows.split(max(1, CHUNK // attn.shape[-1])):
        mass = chunk.sort(-1, descending=True).values.cumsum(-1, dtype=torch.float64)
        parts.append(torch.stack([mass[:, k - 1] for k in ks], -1))
    return torch.cat(parts).view(*attn.shape[:3], len(ks)).mean(2)


def oracle_gap(attn: Tensor, ratios: Sequence[float]) -> dict[str, Tensor]:
    """What one set of columns for all queries loses against a set for each query (Fig. 8).

    Returns:
        ``global``, ``query`` and their difference ``gap`` >= 0, each (B, H, R).
    """
    received = column_mean(attn)
    shared = retained_mass(received, received, ratios)
    query = query_retained_mass(attn, ratios)
    return {'global': shared, 'query': query, 'gap': query - shared}


def row_entropy(attn: Tensor) -> Tensor:
    """Mean over the queries of each row's entropy in nats, (B, H); ln N when uniform."""
    return torch.stack([torch.special.entr(head).sum(-1, dtype=torch.float64).mean()
                        for head in attn.flatten(0, 1)]).view(attn.shape[:2])
