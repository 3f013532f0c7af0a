"""Soft threshold ST(.): Euclidean projection onto the probability simplex (sparsemax).

ST_j(s) = max(s_j - kappa(s), 0) with kappa chosen such that sum_j ST_j(s) = 1. The operator of
"High-Similarity-Pass Attention" (arXiv 2205.12768), which DMSA (arXiv 2601.17042, Sec. III-A)
cites. A row that already lies on the simplex is a fixed point, so ST belongs on raw logits,
never on a softmax.
"""

import torch
from torch import Tensor

from mmext.ops.autograd import own_backward


def soft_threshold(scores: Tensor, dim: int = -1) -> Tensor:
    """Project along ``dim`` onto the simplex, by sorting: O(n log n).

    Args:
        scores: any shape, floating point. ``-inf`` entries stay out of the support; a slice that
            is ``-inf`` throughout gives NaN, as softmax does.
        dim: the axis that sums to one afterwards.

    Returns:
        Same shape and dtype; non-negative, exact zeros off the support. Computed in fp32 at least.
    """
    if not scores.is_floating_point():
        raise TypeError(f'soft_threshold needs a floating-point tensor, got {scores.dtype}')
    if own_backward(scores):
        return _SoftThreshold.apply(scores, dim)
    return _project(scores, dim)


def _project(scores: Tensor, dim: int) -> Tensor:
    s = scores.to(torch.promote_types(scores.dtype, torch.float32))
    s = s - s.amax(dim, keepdim=True)
    ranked = s.sort(dim, descending=True).values
    total = ranked.cumsum(dim)
    shape = [1] * s.dim()
    shape[dim] = -1
    rank = torch.arange(1, s.shape[dim] + 1, device=s.device, dtype=s.dtype).view(shape)
    size = (1 + rank * ranked > total).sum(dim, keepdim=True).clamp(min=1)
    kappa = (total.gather(dim, size - 1) - 1) / size
    out = (s - kappa).clamp_min_(0)
    # a long cumsum carries rounding errors of the size of the entries themselves; one Newton step
    # on the (small) entries restores the sum
    support = out > 0
    excess = (out.sum(dim, keepdim=True) - 1) / support.sum(dim, keepdim=True)
    return torch.where(support, out - excess, out).clamp_min_(0).to(scores.dtype)


class _SoftThreshold(torch.autograd.Function):
    """Jacobian Diag(s) - s s^T / |s|, s the indicator of the support."""

    @staticmethod
    def forward(ctx, scores, dim):
        out = _project(scores, dim)
        ctx.save_for_backward(out)
        ctx.dim = dim
        return out

    @staticmethod
    def backward(ctx, grad):
        support = ctx.saved_tensors[0] > 0
        grad32 = grad.to(torch.promote_types(grad.dtype, torch.float32)) * support
        mean = grad32.sum(ctx.dim, keepdim=True) / support.sum(ctx.dim, keepdim=True)
        return ((grad32 - mean) * support).to(grad.dtype), None
