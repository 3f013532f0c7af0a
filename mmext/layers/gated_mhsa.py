"""Softmax attention with the G1 output gate (arXiv 2505.06708), Y' = Y * sigmoid(x W_gate).

The gate comes from the same tokens as the queries and acts before the output projection; one
scalar per head ('headwise') or per channel ('elementwise'). The official code computes it inside
an enlarged query projection; here it is a layer of its own, ``gate``, so that without it the
parameters are timm's ``Attention`` (``qkv``, ``proj``) and with 'elementwise' timm's gated one.
"""

from torch import Tensor, nn

from mmext.layers.mssa import softmax_attention

GATES = ('none', 'headwise', 'elementwise')


class GatedMHSA(nn.Module):
    """Multi-head softmax attention; gate='none' is the plain one.

    Args:
        dim, num_heads, qkv_bias, qk_norm, proj_bias, attn_drop, proj_drop, norm_layer: as timm's
            ``Attention``.
        gate: 'none', 'headwise' or 'elementwise'.
    """

    def __init__(self, dim: int, num_heads: int = 8, qkv_bias: bool = True, qk_norm: bool = False,
                 proj_bias: bool = True, attn_drop: float = 0., proj_drop: float = 0.,
                 norm_layer: type[nn.Module] | None = nn.LayerNorm, gate: str = 'headwise'):
        super().__init__()
        if num_heads < 1 or dim % num_heads:
            raise ValueError(f'GatedMHSA: dim={dim} must be divisible by num_heads={num_heads}')
        if gate not in GATES:
            raise ValueError(f'gate={gate!r} is unknown, choose one of {GATES}')
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.q_norm = norm_layer(self.head_dim) if qk_norm else nn.Identity()
        self.k_norm = norm_layer(self.head_dim) if qk_norm else nn.Identity()
        width = {'none': 0, 'headwise': num_heads, 'elementwise': dim}[gate]
        self.gate = nn.Linear(dim, width, bias=qkv_bias) if width else None
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim, bias=proj_bias)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor, hw: tuple[int, int] | None = None, valid: Tensor | None = None,
                return_intermediates: bool = False):
        """x (B, N, C) -> (B, N, C); hw is not used.

        Args:
            valid: (B, N) bool, False tokens are attended by nobody.
            return_intermediates: also return logits and attn (B, H, N, N), and where there is one
                the gate (B, H, N, 1 or P).
        """
        # (B, H, N, P) each
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        y, stats = softmax_attention(
            self.q_norm(q), self.k_norm(k), v, valid, self.attn_drop, return_intermediates)
        if self.gate is not None:
            gate = self.gate(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2).sigmoid()
            y = y * gate
            stats['gate'] = gate
        out = self.proj_drop(self.proj(y.transpose(1, 2).reshape(x.shape)))
        return (out, stats) if return_intermediates else out
