"""Softmax attention with the G1 output gate (arXiv 2505.06708), Y' = Y * sigmoid(x W_gate).

The gate comes from the same tokens as the queries and acts before the output projection; one
scalar per head ('headwise') or per channel ('elementwise'). The official code computes it inside
an enlarged query projection; here it is a layer of its own, ``gate``, so that without it the
parameters are timm's ``Attention`` (``qkv``, ``proj``) and with 'elementwise' timm's gated one.
"""

from torch import Tensor, nn

from mmext.layers.common import check_heads, merge_heads, refuse
from mmext.layers.mssa import explicit_attention, softmax_attention

GATES = ('none', 'headwise', 'elementwise')


class GatedMHSA(nn.Module):
    """Multi-head softmax attention; gate='none' is the plain one.

    Args:
        dim, num_heads, qkv_bias, qk_norm, proj_bias, attn_drop, proj_drop, norm_layer, device,
            dtype: as timm's ``Attention``.
        scale_norm: must be False.
        gate: 'none', 'headwise' or 'elementwise'.
    """

    def __init__(self, dim: int, num_heads: int = 8, qkv_bias: bool = True, qk_norm: bool = False,
                 scale_norm: bool = False, proj_bias: bool = True, attn_drop: float = 0.,
                 proj_drop: float = 0., norm_layer: type[nn.Module] | None = None,
                 device=None, dtype=None, gate: str = 'headwise'):
        super().__init__()
        check_heads(dim, num_heads, type(self).__name__)
        refuse(self, scale_norm=scale_norm)
        if gate not in GATES:
            raise ValueError(f'gate={gate!r} is unknown, choose one of {GATES}')
        dd = dict(device=device, dtype=dtype)
        norm_layer = norm_layer or nn.LayerNorm
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias, **dd)
        self.q_norm = norm_layer(self.head_dim, **dd) if qk_norm else nn.Identity()
        self.k_norm = norm_layer(self.head_dim, **dd) if qk_norm else nn.Identity()
        width = {'none': 0, 'headwise': num_heads, 'elementwise': dim}[gate]
        self.gate = nn.Linear(dim, width, bias=qkv_bias, **dd) if width else None
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim, bias=proj_bias, **dd)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor, hw: tuple[int, int] | None = None, valid: Tensor | None = None,
                attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """x (B, N, C) -> (B, N, C); hw is not used, a mask or causality is refused.

        Args:
            valid: (B, N) bool, False tokens are attended by nobody.
        """
        refuse(self, attn_mask=attn_mask, is_causal=is_causal)
        y = softmax_attention(*self.project(x), valid, self.attn_drop)
        return self.finish(y, self.gates(x))

    def forward_intermediates(self, x: Tensor, hw: tuple[int, int] | None = None,
                              valid: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """``forward``, and a dict of logits and attn (B, H, N, N), and where there is one the gate
        (B, H, N, 1 or P)."""
        y, stats = explicit_attention(*self.project(x), valid, self.attn_drop)
        gate = self.gates(x)
        return self.finish(y, gate), stats if gate is None else stats | {'gate': gate}

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, N, C) -> q, k, v (B, H, N, P)."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return self.q_norm(q), self.k_norm(k), v

    def gates(self, x: Tensor) -> Tensor | None:
        """x (B, N, C) -> (B, H, N, 1 or P)."""
        if self.gate is None:
            return None
        return self.gate(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2).sigmoid()

    def finish(self, y: Tensor, gate: Tensor | None) -> Tensor:
        y = y if gate is None else y * gate
        return self.proj_drop(self.proj(merge_heads(y)))
