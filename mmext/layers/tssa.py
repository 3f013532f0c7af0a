"""Token Statistics Self-Attention, TSSA (arXiv 2412.17810; official RobinWu218/ToST tost.py).

Parameter names are the official ones: ``qkv`` (one projection, no keys or values), ``temp``,
``to_out.0``. Differences: the statistics run in fp32 under half precision and autocast, and
``valid`` keeps padding tokens out of them.
"""

import torch
from torch import Tensor, nn

from mmext.ops.token_statistics import tssa


class TSSA(nn.Module):
    """Linear-time attention from second moments of the projected tokens.

    Args:
        dim: channels C of the tokens, divisible by num_heads.
        num_heads: H subspaces of P = C / H channels.
        qkv_bias: bias of the input projection.
        qk_norm: must be False, there are no queries and keys.
        proj_bias: bias of the output projection.
        attn_drop: dropout on 1/(1+m).
        proj_drop: dropout after the output projection.
        norm_layer: unused; part of timm's attention signature.
    """

    def __init__(self, dim: int, num_heads: int = 8, qkv_bias: bool = True, qk_norm: bool = False,
                 proj_bias: bool = True, attn_drop: float = 0., proj_drop: float = 0.,
                 norm_layer: type[nn.Module] | None = None):
        super().__init__()
        check_heads(dim, num_heads, qk_norm, type(self).__name__)
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.qkv = nn.Linear(dim, dim, bias=qkv_bias)
        self.temp = nn.Parameter(torch.ones(num_heads, 1))
        self.attn_drop = nn.Dropout(attn_drop)
        self.to_out = nn.Sequential(nn.Linear(dim, dim, bias=proj_bias), nn.Dropout(proj_drop))

    def forward(self, x: Tensor, hw: tuple[int, int] | None = None, valid: Tensor | None = None,
                return_intermediates: bool = False):
        """x (B, N, C) -> (B, N, C); hw is not used.

        Args:
            valid: (B, N) bool, True = image.
            return_intermediates: also return membership (B, H, N), second_moment (B, H, P) and
                v (B, H, N, P).
        """
        v = split_heads(self.qkv(x), self.num_heads)
        y, stats = tssa(v, self.temp, valid, drop_factors(self.attn_drop, v),
                        inplace=may_overwrite(self.qkv, return_intermediates))
        out = self.to_out(y.transpose(1, 2).reshape(x.shape))
        return (out, stats | {'v': v}) if return_intermediates else out

    def no_weight_decay(self) -> set[str]:
        return {'temp'}


def check_heads(dim: int, num_heads: int, qk_norm: bool, name: str) -> None:
    if num_heads < 1 or dim % num_heads:
        raise ValueError(f'{name}: dim={dim} must be divisible by num_heads={num_heads}')
    if qk_norm:
        raise ValueError(f'{name} has no queries and keys to normalize: set qk_norm=False')


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(B, N, H*P) -> (B, H, N, P), a view."""
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def drop_factors(dropout: nn.Dropout, v: Tensor) -> Tensor | None:
    """Dropout factors (B, H, P) for the statistics of v (B, H, N, P); None where it is off."""
    if not dropout.training or dropout.p == 0:
        return None
    return dropout(torch.ones_like(v[:, :, 0], dtype=torch.promote_types(v.dtype, torch.float32)))


def may_overwrite(projection: nn.Module, keep: bool) -> bool:
    """True when nobody but the layer itself sees the output of its projection."""
    return not (keep or torch.is_grad_enabled() or projection._forward_hooks)
