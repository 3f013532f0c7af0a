"""Coding rates of the MCR2 objective, the curves of the ToST and DMST papers.

Symbols: z (B, N, C) tokens, v (B, H, N, P) tokens projected per head (U_k^T z_j), Pi (B, H, N)
memberships, n_k = sum_j Pi_jk. With tokens normalized per head and eps2 = 0.01 the ceiling of the
variational rate is 0.5 * 48 * ln(101) = 110.763 for P = 48, which is where ToST's published curve
starts.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mmext.ops.precision import no_autocast

NORMALIZE = ('head', 'token', None)


def variational_coding_rate(v: Tensor, pi: Tensor, gate: Tensor | None = None, eps2: float = 0.01,
                            normalize: str | None = 'head', scale: float | None = None,
                            valid: Tensor | None = None) -> Tensor:
    """R_cf^var(Z, Pi | U), one value per image.

        1/2 sum_k (n_k/n) sum_i log(1 + scale (1/n_k) sum_j Pi_jk v_kji^2)

    Args:
        v: (B, H, N, P).
        pi: (B, H, N), non-negative.
        gate: (B, H, N); the subspaces are then U_k^S, i.e. v is multiplied by it (after
            normalizing, which would undo it).
        eps2: squared distortion.
        normalize: L2-normalize v per token and 'head', per 'token' over all heads, or None.
        scale: factor of the second moment, P / eps2 by default.
        valid: (B, N) bool, tokens that count.

    Returns:
        (B,) in nats.
    """
    v, pi, count = _prepare(v, pi, gate, normalize, valid)
    n_k = pi.sum(-1)
    with no_autocast(v):
        moment = torch.matmul(pi[:, :, None], v.square()).squeeze(2)
    moment = moment / n_k.clamp_min(1e-12)[..., None]
    rate = torch.log1p((v.shape[-1] / eps2 if scale is None else scale) * moment).sum(-1)
    return 0.5 * (n_k / count * rate).sum(-1)


def exact_coding_rate(v: Tensor, pi: Tensor | None = None, gate: Tensor | None = None,
                      eps2: float = 0.01, normalize: str | None = 'head',
                      scale: float | None = None, valid: Tensor | None = None) -> Tensor:
    """Log-determinant rate, one value per image; by Sylvester's identity P x P, not N x N.

    With memberships: 1/2 sum_k (n_k/n) logdet(I + scale/n_k V^T Diag(pi_k) V), an upper bound of
    which (Hadamard) is the variational rate. Without (pi None): CRATE's
    1/2 sum_k logdet(I + scale/N V V^T).

    Args and returns: as ``variational_coding_rate``.
    """
    ones = torch.ones_like(v[..., 0])
    v, weights, count = _prepare(v, ones if pi is None else pi, gate, normalize, valid)
    n_k = weights.sum(-1)
    with no_autocast(v):
        gram = torch.matmul(v.transpose(-1, -2) * weights[:, :, None], v)
    scale = v.shape[-1] / eps2 if scale is None else scale
    gram = gram * (scale / n_k.clamp_min(1e-12))[..., None, None]
    rate = torch.logdet(gram + torch.eye(v.shape[-1], device=v.device, dtype=v.dtype))
    share = n_k / count if pi is not None else torch.ones_like(n_k)
    return 0.5 * (share * rate).sum(-1)


def coding_rate_ceiling(head_dim: int, eps2: float = 0.01) -> float:
    """Largest variational rate of head-normalized tokens with memberships that sum to one."""
    return 0.5 * head_dim * torch.log1p(torch.tensor(1 / eps2, dtype=torch.float64)).item()


class RateReduction(NamedTuple):
    """MCR2 of (B,) images in nats: R(Z), R^c(Z, Pi) and their difference."""

    whole: Tensor
    parts: Tensor
    reduction: Tensor


def rate_reduction(z: Tensor, pi: Tensor, eps2: float = 0.01, normalize: bool = False,
                   valid: Tensor | None = None) -> RateReduction:
    """The MCR2 objective itself, of which the variational rate bounds the second part.

        R(Z)       = 1/2 logdet(I + C / (eps2 n) Z Z^T)
        R^c(Z, Pi) = 1/2 sum_k (n_k/n) logdet(I + C / (eps2 n_k) Z Diag(pi_k) Z^T)
        Delta R    = R - R^c

    By Sylvester's identity over the smaller of N and C. Where memberships sum to one over the
    heads, Delta R is at least 0.

    Args:
        z: (B, N, C).
        pi: (B, H, N), non-negative.
        eps2: squared distortion.
        normalize: tokens to unit length first.
        valid: (B, N) bool, tokens that count.
    """
    v, pi, count = _prepare(z[:, None], pi, None, 'head' if normalize else None, valid)
    z = v[:, 0]
    ones = z.new_ones(z.shape[:2]) if valid is None else valid.to(z)
    weights = torch.cat([ones[:, None], pi], 1)  # (B, 1 + H, N)
    n_k = weights.sum(-1)
    scale = z.shape[-1] / eps2 / n_k.clamp_min(1e-12)
    with no_autocast(z):
        if z.shape[1] < z.shape[2]:
            root = _root(weights)
            gram = torch.matmul(z, z.mT)[:, None] * root[..., None] * root[:, :, None]
        else:
            gram = torch.matmul(z.mT[:, None] * weights[:, :, None], z[:, None])
    eye = torch.eye(gram.shape[-1], device=z.device, dtype=z.dtype)
    rate = 0.5 * torch.logdet(gram * scale[..., None, None] + eye)
    whole = rate[:, 0]
    parts = (n_k[:, 1:] / count * rate[:, 1:]).sum(-1)
    return RateReduction(whole, parts, whole - parts)


def rate_reduction_reference(z: Tensor, pi: Tensor, eps2: float = 0.01) -> RateReduction:
    """:func:`rate_reduction` term by term as the papers write it, in float64."""
    n, dim = z.shape[1:]
    eye = torch.eye(dim, dtype=torch.float64, device=z.device)
    whole, parts = [], []
    for tokens, memberships in zip(z.double().mT, pi.double(), strict=True):  # (C, N), (H, N)
        whole.append(0.5 * torch.logdet(eye + dim / (eps2 * n) * tokens @ tokens.T))
        parts.append(sum(
            0.5 * pi_k.sum() / n * torch.logdet(
                eye + dim / (eps2 * pi_k.sum()) * tokens @ torch.diag(pi_k) @ tokens.T)
            for pi_k in memberships))
    whole, parts = torch.stack(whole), torch.stack(parts)
    return RateReduction(whole, parts, whole - parts)


def _root(weights: Tensor) -> Tensor:
    """Square root with gradient 0, not infinity, at 0."""
    positive = weights > 0
    return torch.where(positive, weights.where(positive, torch.ones_like(weights)).sqrt(), 0)


def _prepare(v, pi, gate, normalize, valid):
    if normalize not in NORMALIZE:
        raise ValueError(f'normalize={normalize!r} is unknown, choose one of {NORMALIZE}')
    dtype = torch.promote_types(v.dtype, torch.float32)
    v, pi = v.to(dtype), pi.to(dtype)
    if normalize is not None:
        dim = -1 if normalize == 'head' else (1, 3)
        v = v / torch.linalg.vector_norm(v, dim=dim, keepdim=True).clamp_min(1e-12)
    if gate is not None:
        v = v * gate.to(dtype)[..., None]
    if valid is None:
        return v, pi, v.shape[2]
    return v, pi * valid[:, None], valid.sum(-1, keepdim=True).to(dtype)
