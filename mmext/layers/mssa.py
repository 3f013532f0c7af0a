"""Multi-head Subspace Self-Attention, MSSA, of CRATE (arXiv 2306.01129; official model/crate.py).

    w = x U, y = softmax(w w^T / sqrt(P)) w, out = W_o y: queries, keys and values are one.

Names as in the official code: ``qkv`` (no bias), ``to_out.0``.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from mmext.layers.common import check_heads, merge_heads, refuse, split_heads


class MSSA(nn.Module):
    """Quadratic white-box attention.

    Args:
        dim, num_heads, qkv_bias, proj_bias, attn_drop, proj_drop, device, dtype: as timm's
            attention; dim must be divisible by num_heads.
        qk_norm, scale_norm: must be False.
        norm_layer: unused; part of timm's attention signature.
    """

    def __init__(self, dim: int, num_heads: int = 8, qkv_bias: bool = False, qk_norm: bool = False,
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
        self.attn_drop = nn.Dropout(attn_drop)
        self.to_out = nn.Sequential(
            nn.Linear(dim, dim, bias=proj_bias, **dd), nn.Dropout(proj_drop))

    def forward(self, x: Tensor, hw: tuple[int, int] | None = None, valid: Tensor | None = None,
                attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """x (B, N, C) -> (B, N, C); hw is not used, a mask or causality is refused.

        Args:
            valid: (B, N) bool, False tokens are attended by nobody.
        """
        refuse(self, attn_mask=attn_mask, is_causal=is_causal)
        w = split_heads(self.qkv(x), self.num_heads)
        return self.to_out(merge_heads(softmax_attention(w, w, w, valid, self.attn_drop)))

    def forward_intermediates(self, x: Tensor, hw: tuple[int, int] | None = None,
                              valid: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """``forward``, and a dict of logits and attn (B, H, N, N)."""
        w = split_heads(self.qkv(x), self.num_heads)
        y, stats = explicit_attention(w, w, w, valid, self.attn_drop)
        return self.to_out(merge_heads(y)), stats


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None,
                      dropout: nn.Dropout) -> Tensor:
    """Fused softmax attention over (B, H, N, P) heads; valid (B, N)."""
    mask = None if valid is None else valid[:, None, None, :]
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout.p if dropout.training else 0.)


def explicit_attention(q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None,
                       dropout: nn.Dropout) -> tuple[Tensor, dict[str, Tensor]]:
    """``softmax_attention`` with its matrices logits and attn (B, H, N, N)."""
    logits = (q * q.shape[-1]**-0.5) @ k.transpose(-2, -1)
    masked = logits if valid is None else logits.masked_fill(~valid[:, None, None], float('-inf'))
    attn = masked.softmax(-1)
    return dropout(attn) @ v, {'logits': logits, 'attn': attn}
