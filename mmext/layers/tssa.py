"""Token Statistics Self-Attention, TSSA (arXiv 2412.17810; official RobinWu218/ToST tost.py).

Parameter names are the official ones: ``qkv`` (one projection, no keys or values), ``temp``,
``to_out.0``. Differences: the statistics run in fp32 under half precision and autocast, and
``valid`` keeps padding tokens out of them.
"""

import torch
from torch import Tensor, nn

from mmext.layers.common import (
    check_heads,
    drop_factors,
    may_overwrite,
    merge_heads,
    refuse,
    split_heads,
)
from mmext.ops.token_statistics import tssa


class TSSA(nn.Module):
    """Linear-time attention from second moments of the projected tokens.

    Args:
        dim: channels C of the tokens, divisible by num_heads.
        num_heads: H subspaces of P = C / H channels.
        qkv_bias: bias of the input projection.
        qk_norm, scale_norm: must be False; part of timm's attention signature.
        proj_bias: bias of the output projection.
        attn_drop: dropout on 1/(1+m).
        proj_drop: dropout after the output projection.
        norm_layer: unused; part of timm's attention signature.
        device, dtype: of the parameters.
    """

    def __init__(self, dim: int, num_heads: int = 8, qkv_bias: bool = True, qk_norm: bool = False,
                 scale_norm: bool = False, proj_bias: bool = True, attn_drop: float = 0.,
                 proj_drop: float = 0., norm_layer: type[nn.Module] | None = None, device=None,
                 dtype=None):
        super().__init__()
        check_heads(dim, num_heads, type(self).__name__)
        refuse(self, qk_norm=qk_norm, scale_norm=scale_norm)
        dd = dict(device=device, dtype=dtype)
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.qkv = nn.Linear(dim, dim, bias=qkv_bias, **dd)
        self.temp = nn.Parameter(torch.ones(num_heads, 1, **dd))
        self.attn_drop = nn.Dropout(attn_drop)
        self.to_out = nn.Sequential(
            nn.Linear(dim, dim, bias=proj_bias, **dd), nn.Dropout(proj_drop))

    def forward(self, x: Tensor, hw: tuple[int, int] | None = None, valid: Tensor | None = None,
                attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """x (B, N, C) -> (B, N, C); hw is not used, a mask or causality is refused.

        Args:
            valid: (B, N) bool, True = image.
        """
        refuse(self, attn_mask=attn_mask, is_causal=is_causal)
        v = split_heads(self.qkv(x), self.num_heads)
        y, _ = tssa(v, self.temp, valid, drop_factors(self.attn_drop, v),
                    inplace=may_overwrite(self.qkv))
        return self.to_out(merge_heads(y))

    def forward_intermediates(self, x: Tensor, hw: tuple[int, int] | None = None,
                              valid: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """``forward``, and a dict of membership (B, H, N), second_moment (B, H, P) and
        v (B, H, N, P)."""
        v = split_heads(self.qkv(x), self.num_heads)
        y, stats = tssa(v, self.temp, valid, drop_factors(self.attn_drop, v))
        return self.to_out(merge_heads(y)), stats | {'v': v}

    def no_weight_decay(self) -> set[str]:
        return {'temp'}
