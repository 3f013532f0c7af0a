"""Decoupled Membership-Subspace Attention, DMSA (arXiv 2601.17042).

    v = S x, L = temp * W x, Pi = softmax_H(L), G = ST_H(L)
    m = sum_N Pi G^2 / sum_N Pi * v^2,   out = W_o(-(v Pi G) / (1 + m))

No official code exists. The form is derived from the paper's objective (the operator with
``gate_power=2`` and a tied output basis is minus its gradient at fixed Pi and G); every step that
the paper leaves open is an option here. Our choices, the defaults: Pi by softmax over heads, a
free output matrix (hence G to the first power), 2-D axial RoPE on v, logits without bias.

TPUSA and TPSUSA, the paper's ablations (Table II), are settings: see ``DMSA_VARIANTS``.
"""

import torch
from torch import Tensor, nn

from mmext.layers.common import (
    check_heads,
    drop_factors,
    is_plain_linear,
    may_overwrite,
    merge_heads,
    refuse,
    split_heads,
)
from mmext.ops.precision import autocast_copy, no_autocast
from mmext.ops.rope import ROPE_MODES, apply_rope, rope_angles
from mmext.ops.token_statistics import check_options, dmsa, membership_logits

ROPE_SITES = ('feature', 'membership', 'both', 'none')

# Table II of the paper: which axis the soft threshold makes sparse
DMSA_VARIANTS = {
    'DMSA': dict(sparse_dim='head'),  # gates the subspaces, token assignment untouched
    'TPUSA': dict(sparse_dim='token'),  # sparse token assignment, subspaces not gated
    'TPSUSA': dict(sparse_dim='both'),
}


class DMSA(nn.Module):
    """Linear-time attention with memberships decoupled from the subspaces.

    Args:
        dim: channels C of the tokens, divisible by num_heads.
        num_heads: H subspaces of P = C / H channels.
        qkv_bias: bias of the input projection S (named ``qkv`` as in ToST).
        qk_norm, scale_norm: must be False; part of timm's attention signature.
        proj_bias: bias of the output projection.
        attn_drop: dropout on 1/(1+m).
        proj_drop: dropout after the output projection.
        norm_layer: unused; part of timm's attention signature.
        device, dtype: of the parameters.
        pi_norm: memberships by 'softmax' or 'st' over heads, 'sigmoid', 'softplus', or 'raw'.
        gate_act: gate 'st', 'sigmoid', 'relu', 'gelu', 'identity', 'shrink' or 'none'.
        sparse_dim: axis of the soft threshold, 'head', 'token' or 'both' (``DMSA_VARIANTS``).
        gate_power: power of the gate in the output, 1, 2 (literal gradient) or 0.
        gate_scope: 'subspace' (gate in m and output) or 'output' (like G1 gated attention).
        use_temp: learnable temperature per head on the logits.
        membership_bias: bias of the membership projection W.
        rope: rotate 'feature' (v), 'membership' (the tokens fed to W), 'both' or 'none'. Needs
            the grid: a forward without ``hw`` rotates nothing.
        rope_mode: 'axial' (2-D) or 'raster' (1-D).
        rope_base: base of the rotation frequencies.
        sign: -1 as ToST, or +1.
        shrink_lambda: threshold of gate_act='shrink'.
        learn_lambda: make it a parameter, one per head.

    Raises:
        ValueError: an option is unknown, or has no effect beside another.
    """

    def __init__(self, dim: int, num_heads: int = 8, qkv_bias: bool = True, qk_norm: bool = False,
                 scale_norm: bool = False, proj_bias: bool = True, attn_drop: float = 0.,
                 proj_drop: float = 0., norm_layer: type[nn.Module] | None = None, device=None,
                 dtype=None, *, pi_norm: str = 'softmax',
                 gate_act: str = 'st', sparse_dim: str = 'head', gate_power: int = 1,
                 gate_scope: str = 'subspace', use_temp: bool = True,
                 membership_bias: bool = False, rope: str = 'feature', rope_mode: str = 'axial',
                 rope_base: float = 10000., sign: int = -1, shrink_lambda: float = 0.1,
                 learn_lambda: bool = False):
        super().__init__()
        check_heads(dim, num_heads, type(self).__name__)
        refuse(self, qk_norm=qk_norm, scale_norm=scale_norm)
        check_options(pi_norm, gate_act, sparse_dim, gate_power, gate_scope, sign)
        if rope not in ROPE_SITES:
            raise ValueError(f'rope={rope!r} is unknown, choose one of {ROPE_SITES}')
        if rope_mode not in ROPE_MODES:
            raise ValueError(f'rope_mode={rope_mode!r} is unknown, choose one of {ROPE_MODES}')
        if learn_lambda and gate_act != 'shrink':
            raise ValueError(f"learn_lambda needs gate_act='shrink', got {gate_act!r}")
        dd = dict(device=device, dtype=dtype)
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        if rope != 'none':
            rope_angles((1, 1), self.head_dim, rope_mode)  # refuses a head dimension it cannot turn
        self.options = dict(pi_norm=pi_norm, gate_act=gate_act, sparse_dim=sparse_dim,
                            gate_power=gate_power, gate_scope=gate_scope, sign=sign)
        self.rope = rope
        self.rope_args = (rope_mode, rope_base)
        self.qkv = nn.Linear(dim, dim, bias=qkv_bias, **dd)
        self.membership = nn.Linear(dim, num_heads, bias=membership_bias, **dd)
        self.temp = nn.Parameter(torch.ones(num_heads, 1, **dd)) if use_temp else None
        self.shrink_lambda = shrink_lambda
        if learn_lambda:
            self.shrink_lambda = nn.Parameter(torch.full(
                (num_heads,), float(shrink_lambda), **dd))
        self.attn_drop = nn.Dropout(attn_drop)
        self.to_out = nn.Sequential(
            nn.Linear(dim, dim, bias=proj_bias, **dd), nn.Dropout(proj_drop))

    def forward(self, x: Tensor, hw: tuple[int, int] | None = None, valid: Tensor | None = None,
                attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """x (B, N, C) -> (B, N, C); a mask or causality is refused.

        Args:
            hw: grid of the last h*w tokens, for RoPE; the tokens before it are not rotated.
            valid: (B, N) bool, True = image.
        """
        refuse(self, attn_mask=attn_mask, is_causal=is_causal)
        return self.attend(x, hw, valid, may_overwrite(self.qkv))[0]

    def forward_intermediates(self, x: Tensor, hw: tuple[int, int] | None = None,
                              valid: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """``forward``, and a dict of membership and gate (B, H, N), second_moment (B, H, P) and
        v (B, H, N, P; after RoPE)."""
        return self.attend(x, hw, valid, overwrite=False)

    def attend(self, x: Tensor, hw: tuple[int, int] | None, valid: Tensor | None,
               overwrite: bool) -> tuple[Tensor, dict[str, Tensor]]:
        x_proj = autocast_copy(x)  # one copy, which both projections keep for backward
        v = split_heads(self.qkv(x_proj), self.num_heads)
        if hw is not None and self.rope in ('feature', 'both'):
            v = apply_rope(v, hw, *self.rope_args, inplace=overwrite)
        logits = self.membership_logits(x, x_proj, hw)
        lam = self.shrink_lambda
        lam = lam[:, None] if isinstance(lam, Tensor) else lam
        y, stats = dmsa(v, logits, **self.options, shrink_lambda=lam, valid=valid,
                        drop_factors=drop_factors(self.attn_drop, v), inplace=overwrite)
        return self.to_out(merge_heads(y)), stats | {'v': v}

    def membership_logits(self, x: Tensor, saved: Tensor, hw: tuple[int, int] | None) -> Tensor:
        """L (B, H, N) in fp32; ``saved`` is what backward keeps of x."""
        if hw is not None and self.rope in ('membership', 'both'):
            turned = apply_rope(split_heads(x, self.num_heads), hw, *self.rope_args)
            x = saved = merge_heads(turned)
        if is_plain_linear(self.membership):
            logits = membership_logits(x, self.membership.weight, self.membership.bias, saved)
        else:
            with no_autocast(x):
                logits = self.membership(x).transpose(1, 2)
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return logits if self.temp is None else logits * self.temp.to(logits.dtype)

    def no_weight_decay(self) -> set[str]:
        return {'temp'} if self.temp is not None else set()
