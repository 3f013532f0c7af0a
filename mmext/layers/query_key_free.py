"""Attention by the key bias alone: A = softmax(1 b^T), the same for every query.

Source: "Exploiting Biases in Attention for Transformers" (2026), Table 10.
"""

import torch
from torch import Tensor, nn

from mmext.layers.biased_attention import ALL_COLUMNS, BiasedAttention, Heads
from mmext.layers.common import refuse, split_heads
from mmext.ops.column_selection import Columns
from mmext.ops.key_bias import query_key_free_attention


class QueryKeyFreeAttention(BiasedAttention):
    """``BiasedAttention`` without queries and keys; the projection ``v`` replaces ``qkv``.

    Loading takes the value rows out of a ``qkv`` where it finds one.

    Args:
        args, kwargs: of ``BiasedAttention``.

    Raises:
        ValueError: an option needs queries and keys.
    """

    def __init__(self, *args, qk_norm: bool = False, key_bias: bool = True, **kwargs):
        super().__init__(*args, key_bias=key_bias, **kwargs)
        refuse(self, qk_norm=qk_norm)
        if not key_bias:
            raise ValueError('query-key-free attention consists of the key bias: key_bias=True')

    def build_projections(self, dim: int, width: int, qkv_bias: bool, **dd) -> None:
        self.v = nn.Linear(dim, width, bias=qkv_bias, **dd)

    def project(self, x: Tensor, columns: Columns = ALL_COLUMNS, hw: tuple[int, int] | None = None,
                attn_mask: Tensor | None = None) -> Heads:
        """x (B, N, C) -> values; a mask that differs between queries means nothing here."""
        refuse(self, attn_mask=attn_mask)
        return Heads(None, None, columns.gather(split_heads(self.v(x), self.num_heads)))

    def attend(self, heads: Heads, bias: Tensor, columns: Columns) -> Tensor:
        """Values of the columns, bias (B, H, N) -> (B, H, N, D), one output for all queries."""
        out = query_key_free_attention(heads.v, columns.gather(bias), columns.kept,
                                       self.attn_drop.p if self.training else 0.0)
        return out.expand(-1, -1, bias.shape[-1], -1)

    def logits(self, heads: Heads) -> Tensor:
        batch, num_heads, num_tokens = heads.v.shape[:3]
        dtype = torch.promote_types(heads.v.dtype, torch.float32)
        return heads.v.new_zeros(1, dtype=dtype).expand(
            batch, num_heads, num_tokens, num_tokens)

    def fit_state_dict(self, state_dict: dict[str, Tensor], prefix: str = '') -> list[str]:
        """Replace a ``qkv`` by its value rows, in place; returns what was done, in words."""
        done = []
        for name in ('weight', 'bias'):
            dense = state_dict.pop(f'{prefix}qkv.{name}', None)
            if dense is not None:
                state_dict[f'{prefix}v.{name}'] = dense[2 * dense.shape[0] // 3:]
                done.append(f'{prefix}v.{name} from qkv')
        return done

    def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs):
        self.fit_state_dict(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
