"""Token-statistics attention: TSSA (arXiv 2412.17810) and DMSA (arXiv 2601.17042).

Symbols: v (B, H, N, P) projected tokens per head (subspace), Pi (B, H, N) memberships, G (B, H, N)
gates, m (B, H, P) second moment per head and channel. Both operators are

    m = sum_n a_n v_n^2,        y_n = c_n v_n / (1 + m)

with per-token scalars a (weights) and c (coefficients): TSSA has a = Pi / sum_N Pi and c = -Pi;
DMSA folds its gate in as a = Pi G^2 / sum_N Pi and c = -Pi G, so the gated tokens u = G v never
exist in memory. All statistics are fp32 at least, whatever the dtype of v. Backward keeps v and
the per-token scalars only and recomputes the squares.

``*_reference`` are the plain equations, written out with autograd.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from mmext.ops.autograd import (
    differentiated_again,
    gradients,
    own_backward,
    plain,
    transformed,
)
from mmext.ops.precision import no_autocast
from mmext.ops.thresholding import soft_threshold

PI_EPS = 1e-8  # official ToST: Pi / (Pi.sum + 1e-8)
NORM_EPS = 1e-12  # torch.nn.functional.normalize
RAW_EPS = 1e-2  # smallest |sum_N Pi| for signed memberships (our choice)

PI_NORMS = ('softmax', 'st', 'raw', 'sigmoid', 'softplus')
GATE_ACTS = ('st', 'sigmoid', 'relu', 'gelu', 'identity', 'shrink', 'none')
SPARSE_DIMS = ('head', 'token', 'both')
GATE_SCOPES = ('subspace', 'output')


def stat_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype statistics are kept in: fp32, or fp64 for fp64 input."""
    return torch.promote_types(dtype, torch.float32)


# ---------------------------------------------------------------------------- the two operators
def tssa(v: Tensor, temp: Tensor, valid: Tensor | None = None, drop_factors: Tensor | None = None,
         inplace: bool = False) -> tuple[Tensor, dict[str, Tensor]]:
    """Token Statistics Self-Attention, without the two projections around it.

    Args:
        v: (B, H, N, P) projected tokens.
        temp: (H, 1) temperature of the membership softmax.
        valid: (B, N) bool, False tokens stay out of every sum and get output 0.
        drop_factors: (B, H, P) dropout factors of 1/(1+m), 0 or 1/(1-p).
        inplace: overwrite v with the result where no gradient is recorded.

    Returns:
        y (B, H, N, P) in v's dtype, and a dict with membership (B, H, N) and second_moment
        (B, H, P; carries no gradient).
    """
    logits = token_energy(v, valid) * temp.to(stat_dtype(v.dtype))
    pi = _mask(logits.softmax(1), valid)
    y, m = statistics_attention(
        v, pi / (pi.sum(-1, keepdim=True) + PI_EPS), -pi, drop_factors, inplace)
    return y, {'membership': pi, 'second_moment': m}


def dmsa(v: Tensor, logits: Tensor, pi_norm: str = 'softmax', gate_act: str = 'st',
         sparse_dim: str = 'head', gate_power: int = 1, gate_scope: str = 'subspace',
         sign: int = -1, shrink_lambda: float | Tensor = 0.1, valid: Tensor | None = None,
         drop_factors: Tensor | None = None, inplace: bool = False
         ) -> tuple[Tensor, dict[str, Tensor]]:
    """Decoupled Membership-Subspace Attention, without the projections around it.

    Args:
        v: (B, H, N, P) projected tokens.
        logits: (B, H, N) raw membership logits, in fp32 for half-precision v.
        pi_norm, gate_act, sparse_dim, shrink_lambda: see ``memberships``.
        gate_power: power of G in the output; 1, 2 (the literal gradient) or 0 (gate in m only).
        gate_scope: 'subspace' gates m and the output, 'output' the output only (like G1).
        sign: -1 as ToST, or +1.
        valid, drop_factors, inplace: as in ``tssa``.

    Returns:
        y (B, H, N, P) in v's dtype, and a dict with membership (B, H, N), gate (B, H, N; ones
        where there is none) and second_moment (B, H, P; carries no gradient).
    """
    check_options(pi_norm, gate_act, sparse_dim, gate_power, gate_scope, sign)
    pi, gate = memberships(logits, pi_norm, gate_act, sparse_dim, shrink_lambda, valid)
    total = pi.sum(-1, keepdim=True)
    if pi_norm == 'raw':
        total = torch.where(total < 0, total.clamp_max(-RAW_EPS), total.clamp_min(RAW_EPS))
    else:
        total = total + PI_EPS
    weights, coef = pi / total, sign * pi
    if gate is not None:
        if gate_scope == 'subspace':
            weights = weights * gate.square()
        if gate_power:
            coef = coef * gate**gate_power
    y, m = statistics_attention(v, weights, coef, drop_factors, inplace)
    gate = torch.ones_like(pi) if gate is None else gate
    return y, {'membership': pi, 'gate': gate, 'second_moment': m}


def memberships(logits: Tensor, pi_norm: str = 'softmax', gate_act: str = 'st',
                sparse_dim: str = 'head', shrink_lambda: float | Tensor = 0.1,
                valid: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Memberships Pi and gates G from raw logits (B, H, N).

    Args:
        pi_norm: Pi = softmax over heads, 'st' (soft threshold over heads), 'sigmoid', 'softplus',
            or 'raw' (the logits themselves, signed).
        gate_act: G = 'st' over heads, 'sigmoid', 'relu', 'gelu', 'identity' (the logits),
            'shrink' (sign(x) max(|x| - lambda, 0)) or 'none' (no gate).
        sparse_dim: 'head' as above (DMSA); 'token': Pi = soft threshold over tokens and no gate
            (TPUSA); 'both': that Pi, and G = soft threshold over heads (TPSUSA).
        valid: (B, N) bool; Pi is 0 where False.

    Returns:
        Pi (B, H, N), G (B, H, N) or None.
    """
    if sparse_dim != 'head':
        if valid is None:
            masked = logits
        else:
            masked = logits.masked_fill(~valid[:, None], float('-inf'))
        gate = soft_threshold(logits, 1) if sparse_dim == 'both' else None
        return soft_threshold(masked, -1), gate
    threshold = soft_threshold(logits, 1) if 'st' in (pi_norm, gate_act) else None
    pi = {
        'softmax': lambda: logits.softmax(1),
        'st': lambda: threshold,
        'raw': lambda: logits,
        'sigmoid': logits.sigmoid,
        'softplus': lambda: F.softplus(logits),
    }[pi_norm]()
    gate = {
        'st': lambda: threshold,
        'sigmoid': logits.sigmoid,
        'relu': logits.relu,
        'gelu': lambda: F.gelu(logits),
        'identity': lambda: logits,
        'shrink': lambda: logits.sign() * (logits.abs() - shrink_lambda).relu(),
        'none': lambda: None,
    }[gate_act]()
    return _mask(pi, valid), gate


def check_options(pi_norm: str, gate_act: str, sparse_dim: str, gate_power: int, gate_scope: str,
                  sign: int) -> None:
    """ValueError naming the option that is out of range or has no effect beside another."""
    for name, value, known in (
        ('pi_norm', pi_norm, PI_NORMS), ('gate_act', gate_act, GATE_ACTS),
        ('sparse_dim', sparse_dim, SPARSE_DIMS), ('gate_power', gate_power, (0, 1, 2)),
        ('gate_scope', gate_scope, GATE_SCOPES), ('sign', sign, (-1, 1))):
        if value not in known:
            raise ValueError(f'{name}={value!r} is unknown, choose one of {known}')
    if sparse_dim != 'head' and (pi_norm, gate_act) != ('softmax', 'st'):
        raise ValueError(
            f"sparse_dim={sparse_dim!r} fixes memberships and gate itself; pi_norm={pi_norm!r} and "
            f"gate_act={gate_act!r} have no effect there: leave them at 'softmax' and 'st'")
    gateless = ("gate_act='none'" if gate_act == 'none'
                else "sparse_dim='token'" if sparse_dim == 'token' else None)
    if gateless and (gate_power, gate_scope) != (1, 'subspace'):
        raise ValueError(
            f"{gateless} has no gate, so gate_power={gate_power} and gate_scope={gate_scope!r} "
            "have no effect: leave them at 1 and 'subspace'")
    if gate_scope == 'output' and gate_power == 0:
        without = "gate_act='none'" if sparse_dim == 'head' else "sparse_dim='token'"
        raise ValueError("gate_scope='output' with gate_power=0 uses the gate nowhere: take "
                         f'gate_power=1 or 2, or {without} for no gate')


def _mask(pi: Tensor, valid: Tensor | None) -> Tensor:
    return pi if valid is None else pi * valid[:, None]


# ---------------------------------------------------------------------------- plain references
def tssa_reference(v: Tensor, temp: Tensor) -> Tensor:
    """TSSA as its equations stand (arXiv 2412.17810, eq. 10 and 14); slow, for comparison."""
    normed = v / v.norm(dim=-2, keepdim=True).clamp_min(NORM_EPS)
    pi = ((normed**2).sum(-1) * temp).softmax(1)
    weights = pi / (pi.sum(-1, keepdim=True) + PI_EPS)
    m = (weights[..., None] * v**2).sum(-2, keepdim=True)
    return -(v * pi[..., None]) / (1 + m)


def dmsa_reference(v: Tensor, logits: Tensor, pi_norm: str = 'softmax', gate_act: str = 'st',
                   sparse_dim: str = 'head', gate_power: int = 1, gate_scope: str = 'subspace',
                   sign: int = -1, shrink_lambda: float | Tensor = 0.1) -> Tensor:
    """DMSA with the gated tokens u = G v written out; slow, for comparison."""
    pi, gate = memberships(logits, pi_norm, gate_act, sparse_dim, shrink_lambda)
    gate = torch.ones_like(pi) if gate is None else gate
    total = pi.sum(-1, keepdim=True)
    if pi_norm == 'raw':
        total = torch.where(total < 0, total.clamp_max(-RAW_EPS), total.clamp_min(RAW_EPS))
    else:
        total = total + PI_EPS
    u = v * gate[..., None] if gate_scope == 'subspace' else v
    m = ((pi / total)[..., None] * u**2).sum(-2, keepdim=True).clamp_min(0)
    return sign * v * (pi * gate**gate_power)[..., None] / (1 + m)


# ---------------------------------------------------------------------------- pieces
def membership_logits(x: Tensor, weight: Tensor, bias: Tensor | None = None,
                      saved: Tensor | None = None) -> Tensor:
    """Raw membership logits W x in fp32 at least: fp16 logits of large tokens lose the softmax.

    Args:
        x: (B, N, C) tokens.
        weight: (H, C).
        bias: (H,) or None.
        saved: (B, N, C) what backward keeps in place of x for the gradient of the weight, e.g.
            the half-precision copy that the feature projection keeps anyway under autocast.

    Returns:
        (B, H, N).
    """
    if own_backward(x, weight):
        logits = _MembershipLogits.apply(x, weight, None if saved is x else saved)
    else:
        logits = _project_logits(x, weight)
    return logits if bias is None else logits + bias.to(logits.dtype)[:, None]


def token_energy(v: Tensor, valid: Tensor | None = None) -> Tensor:
    """sum_P of the squares of v normalized over the token axis: (B, H, N, P) -> (B, H, N).

    Each channel is divided by its L2 norm over the valid tokens (official ToST's F.normalize on
    dim -2), in fp32 at least.
    """
    if transformed():
        return _plain_energy(v, valid)
    if own_backward(v):
        return _TokenEnergy.apply(v, valid)
    return _energy(v, _square_sum(v, valid))


def statistics_attention(v: Tensor, weights: Tensor, coef: Tensor,
                         drop_factors: Tensor | None = None, inplace: bool = False
                         ) -> tuple[Tensor, Tensor]:
    """y_n = coef_n v_n drop_factors / (1 + m), m = max(sum_n weights_n v_n^2, 0).

    Args:
        v: (B, H, N, P); weights, coef: (B, H, N) fp32; drop_factors: (B, H, P) or None.
        inplace: overwrite v where no gradient is recorded.

    Returns:
        y (B, H, N, P) in v's dtype and layout, m (B, H, P) without gradient.
    """
    if transformed():
        return _plain_attention(v, weights, coef, drop_factors)
    if own_backward(v, weights, coef):
        return _StatisticsAttention.apply(v, weights, coef, drop_factors)
    with no_autocast(v):
        m = _weighted_squares(v, weights).clamp_min(0)
        return _scale(v, coef, _shrinkage(m, drop_factors), inplace), m


def _chunks(v: Tensor, axis: int = 2):
    """Slices of the token axis, small enough for temporaries to stay in cache (CPU) or small."""
    length = v.shape[axis]
    if plain():
        return (slice(0, length),)
    budget = 2**20 if v.device.type == 'cpu' else 2**24
    step = max(1, budget * length // max(1, v.numel()))
    return [slice(s, min(s + step, length)) for s in range(0, length, step)]


def _square(v: Tensor, dtype: torch.dtype) -> Tensor:
    if plain():
        return v.to(dtype).square()
    # contiguous on purpose: a batched product of a strided tensor would copy it again
    if v.dtype == dtype:
        return torch.mul(v, v, out=v.new_empty(v.shape))
    return v.to(dtype, memory_format=torch.contiguous_format).square_()


def _weighted_squares(v: Tensor, weights: Tensor) -> Tensor:
    """sum_n weights_n v_n^2, (B, H, P), as a matrix product."""
    dtype = stat_dtype(v.dtype)
    weights = weights.to(dtype)
    m = v.new_zeros((v.shape[0], v.shape[1], 1, v.shape[3]), dtype=dtype)
    for s in _chunks(v):
        m += torch.matmul(weights[:, :, None, s], _square(v[:, :, s], dtype))
    return m.squeeze(2)


def _shrinkage(m: Tensor, drop_factors: Tensor | None) -> Tensor:
    shrink = 1 / (1 + m)
    return shrink if drop_factors is None else shrink * drop_factors


def _scale(v: Tensor, coef: Tensor, factor: Tensor, inplace: bool = False) -> Tensor:
    """coef_n factor_p v_np in v's dtype and layout."""
    dtype = stat_dtype(v.dtype)
    factor = factor[:, :, None].to(dtype)
    if plain():
        return (v * coef[..., None].to(dtype) * factor).to(v.dtype)
    out = v if inplace else torch.empty_like(v)
    for s in _chunks(v):
        target, scalar = out[:, :, s], coef[:, :, s, None].to(dtype)
        if v.dtype == dtype:
            torch.mul(v[:, :, s], scalar, out=target).mul_(factor)
        else:
            target.copy_((v[:, :, s] * scalar).mul_(factor))
    return out


def _plain_attention(v: Tensor, weights: Tensor, coef: Tensor, drop_factors: Tensor | None
                     ) -> tuple[Tensor, Tensor]:
    """``statistics_attention`` as torch differentiates it, as often as asked."""
    dtype = stat_dtype(v.dtype)
    with no_autocast(v):
        m = torch.matmul(weights.to(dtype)[:, :, None], v.to(dtype).square())
        m = m.squeeze(2).clamp_min(0)
        factor = _shrinkage(m, drop_factors)[:, :, None]
        return (v * coef.to(dtype)[..., None] * factor).to(v.dtype), m


class _StatisticsAttention(torch.autograd.Function):

    @staticmethod
    def forward(ctx, v, weights, coef, drop_factors):
        with no_autocast(v):
            moment = _weighted_squares(v, weights)
            m = moment.clamp_min(0)
            y = _scale(v, coef, _shrinkage(m, drop_factors))
        ctx.save_for_backward(v, weights, coef, drop_factors, moment)
        ctx.mark_non_differentiable(m)
        return y, m

    @staticmethod
    def backward(ctx, grad, _):
        v, weights, coef, drop_factors, moment = ctx.saved_tensors
        if differentiated_again():
            return gradients(lambda *inputs: _plain_attention(*inputs)[0],
                             (v, weights, coef, drop_factors), grad)
        dtype = stat_dtype(v.dtype)
        with no_autocast(v):
            m = moment.clamp_min(0)
            factor = _shrinkage(m, drop_factors)
            coef_, weights_ = coef.to(dtype), weights.to(dtype)
            grad_factor = torch.zeros_like(factor)[:, :, None]
            grad_coef, grad_weights = torch.empty_like(coef_), torch.empty_like(weights_)
            for s in _chunks(v):
                product = torch.mul(grad[:, :, s].to(dtype), v[:, :, s]).contiguous()
                grad_factor += torch.matmul(coef_[:, :, None, s], product)
                grad_coef[:, :, s] = product.mul_(factor[:, :, None]).sum(-1)
            grad_m = -grad_factor.squeeze(2) * factor / (1 + m)
            grad_m = (grad_m * (moment >= 0))[:, :, None]
            grad_v = torch.empty_like(v)
            for s in _chunks(v):
                inner = v[:, :, s].to(dtype) * grad_m
                grad_weights[:, :, s] = (inner * v[:, :, s]).sum(-1)
                inner.mul_(2 * weights_[:, :, s, None])
                outer = grad[:, :, s].to(dtype) * coef_[:, :, s, None]
                grad_v[:, :, s] = outer.mul_(factor[:, :, None]).add_(inner)
        return grad_v, grad_weights.to(weights.dtype), grad_coef.to(coef.dtype), None


def _square_sum(v: Tensor, valid: Tensor | None) -> Tensor:
    """sum over valid tokens of v^2, (B, H, P)."""
    dtype = stat_dtype(v.dtype)
    total = v.new_zeros((v.shape[0], v.shape[1], v.shape[3]), dtype=dtype)
    for s in _chunks(v):
        square = v[:, :, s].to(dtype).square()
        if valid is not None:
            square = square.mul_(valid[:, None, s, None])
        total += square.sum(2)
    return total


def _energy(v: Tensor, total: Tensor) -> Tensor:
    dtype = stat_dtype(v.dtype)
    inverse = (1 / total.clamp_min(NORM_EPS**2))[:, :, None]
    out = v.new_empty(v.shape[:3], dtype=dtype)
    for s in _chunks(v):
        out[:, :, s] = v[:, :, s].to(dtype).square().mul_(inverse).sum(-1)
    return out


def _plain_energy(v: Tensor, valid: Tensor | None) -> Tensor:
    """``token_energy`` as torch differentiates it, as often as asked."""
    with no_autocast(v):
        square = v.to(stat_dtype(v.dtype)).square()
        seen = square if valid is None else square * valid[:, None, :, None]
        return (square / seen.sum(2, keepdim=True).clamp_min(NORM_EPS**2)).sum(-1)


class _TokenEnergy(torch.autograd.Function):

    @staticmethod
    def forward(ctx, v, valid):
        total = _square_sum(v, valid)
        ctx.save_for_backward(v, valid, total)
        return _energy(v, total)

    @staticmethod
    def backward(ctx, grad):
        v, valid, total = ctx.saved_tensors
        if differentiated_again():
            return gradients(_plain_energy, (v, valid), grad)
        dtype = stat_dtype(v.dtype)
        with no_autocast(v):
            inverse = 1 / total.clamp_min(NORM_EPS**2)
            # dE_n/d total = -v_n^2 / total^2 where the norm is not clamped
            pull = _weighted_squares(v, grad) * inverse * inverse
            pull = torch.where(total > NORM_EPS**2, pull, torch.zeros_like(pull))[:, :, None]
            grad_v = torch.empty_like(v)
            for s in _chunks(v):
                share = pull if valid is None else pull * valid[:, None, s, None]
                slope = grad[:, :, s, None].to(dtype) * inverse[:, :, None] - share
                grad_v[:, :, s] = slope.mul_(v[:, :, s]).mul_(2)
        return grad_v, None


def _project_logits(x: Tensor, weight: Tensor) -> Tensor:
    dtype = stat_dtype(x.dtype)
    weight = weight.to(dtype)
    if x.dtype == dtype:
        with no_autocast(x):
            return torch.matmul(weight, x.transpose(1, 2))
    out = x.new_empty((x.shape[0], weight.shape[0], x.shape[1]), dtype=dtype)
    with no_autocast(x):
        for s in _chunks(x, axis=1):
            out[:, :, s] = torch.matmul(weight, x[:, s].to(dtype).transpose(1, 2))
    return out


class _MembershipLogits(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x, weight, saved):
        ctx.save_for_backward(x if saved is None else saved, weight)
        ctx.dtype = x.dtype
        return _project_logits(x, weight)

    @staticmethod
    def backward(ctx, grad):
        saved, weight = ctx.saved_tensors
        dtype = stat_dtype(ctx.dtype)
        grad_x = grad_weight = None
        with no_autocast(saved):
            if ctx.needs_input_grad[0]:
                grad_x = torch.matmul(grad.transpose(1, 2), weight.to(dtype)).to(ctx.dtype)
            if ctx.needs_input_grad[1]:
                grad_weight = torch.zeros_like(weight, dtype=dtype)
                for s in _chunks(saved, axis=1):
                    part = torch.matmul(grad[:, :, s], saved[:, s].to(dtype))
                    grad_weight += part.sum(0)
                grad_weight = grad_weight.to(weight.dtype)
        return grad_x, grad_weight, None
