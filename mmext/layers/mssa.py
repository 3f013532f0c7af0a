"""Multi-head Subspace Self-Attention, MSSA, of CRATE (arXiv 2306.01129; official model/crate.py).

    w = x U, y = softmax(w w^T / sqrt(P)) w, out = W_o y: queries, keys and values are one.

Names as in the official code: ``qkv`` (no bias), ``to_out.0``.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from mmext.layers.tssa import check_heads, split_heads


class MSSA(nn.Module):
    """Quadratic white-box attention.

    Args:
        dim, num_heads, qkv_bias, proj_bias, attn_drop, proj_drop: as timm's attention; dim must be
            divisible by num_heads.
        qk_norm: must be False.
        norm_layer: unused; part of timm's attention signature.
    """

    def __init__(self, dim: int, num_heads: int = 8, qkv_bias: bool = False, qk_norm: bool = False,
                 proj_bias: bool = True, attn_drop: float = 0., proj_drop: float = 0.,
                 norm_layer: type[nn.Module] | None = None):
        super().__init__()
        check_heads(dim, num_heads, qk_norm, type(self).__name__)
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.qkv = nn.Linear(dim, dim, bias=qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop)
        self.to_out = nn.Sequential(nn.Linear(dim, dim, bias=proj_bias), nn.Dropout(proj_drop))

    def forward(self, x: Tensor, hw: tuple[int, int] | None = None, valid: Tensor | None = None,
                return_intermediates: bool = False):
        """x (B, N, C) -> (B, N, C); hw is not used.

        Args:
            valid: (B, N) bool, False tokens are attended by nobody.
            return_intermediates: also return logits and attn (B, H, N, N).
        """
        w = split_heads(self.qkv(x), self.num_heads)
        y, stats = softmax_attention(w, w, w, valid, self.attn_drop, return_intermediates)
        out = self.to_out(y.transpose(1, 2).reshape(x.shape))
        return (out, stats) if return_intermediates else out


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, dropout: nn.Dropout,
                      explicit: bool) -> tuple[Tensor, dict[str, Tensor]]:
    """Softmax attention over (B, H, N, P) heads, fused, or explicit with its matrices."""
    mask = None if valid is None else valid[:, None, None, :]
    if not explicit:
        p = dropout.p if dropout.training else 0.
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p), {}
    logits = (q * q.shape[-1]**-0.5) @ k.transpose(-2, -1)
    masked = logits if mask is None else logits.masked_fill(~mask, float('-inf'))
    attn = masked.softmax(-1)
    return dropout(attn) @ v, {'logits': logits, 'attn': attn}
