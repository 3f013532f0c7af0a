"""Rotary position embedding (RoFormer, arXiv 2104.09864) over a token grid.

Channel pairs (2i, 2i+1) of each head are rotated by position * base^(-i/m). 'axial': the first
half of the channels turns with the row, the second half with the column, m = P/4 pairs each;
'raster': all m = P/2 pairs turn with the raster index. Where DMST rotates is not stated by
arXiv 2601.17042; see ``mmext.layers.dmsa`` for the choice made here.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from mmext.ops.autograd import differentiated_again, own_backward, plain

ROPE_MODES = ('axial', 'raster')


def rope_angles(hw: tuple[int, int], head_dim: int, mode: str = 'axial', base: float = 10000.,
                device=None, dtype: torch.dtype = torch.float32) -> Tensor:
    """Angles (h*w, P/2) in radians, tokens in raster order."""
    return _over_grid(_axis_angles(hw, head_dim, mode, base, device, dtype), hw)


def _axis_angles(hw, head_dim, mode, base, device, dtype) -> list[Tensor]:
    """Angles of rows (h, P/4) and columns (w, P/4), or of all tokens (h*w, P/2)."""
    if mode not in ROPE_MODES:
        raise ValueError(f'RoPE mode {mode!r} is unknown, choose one of {ROPE_MODES}')
    sizes = hw if mode == 'axial' else (hw[0] * hw[1],)
    if head_dim % (2 * len(sizes)):
        raise ValueError(
            f"RoPE '{mode}' needs a head dimension divisible by {2 * len(sizes)}, got {head_dim}; "
            "change dim or num_heads, or switch RoPE off")
    pairs = head_dim // 2 // len(sizes)
    freqs = base ** (-torch.arange(pairs, device=device, dtype=dtype) / pairs)
    return [torch.arange(size, device=device, dtype=dtype)[:, None] * freqs for size in sizes]


def _over_grid(parts: list[Tensor], hw: tuple[int, int]) -> Tensor:
    """Values of rows and columns, or of all tokens -> values of all tokens, channels joined."""
    if len(parts) == 1:
        return parts[0]
    rows, cols = parts
    return torch.cat([rows[:, None].expand(*hw, -1), cols[None].expand(*hw, -1)], -1).flatten(0, 1)


def apply_rope(v: Tensor, hw: tuple[int, int], mode: str = 'axial', base: float = 10000.,
               inplace: bool = False) -> Tensor:
    """Rotate the patch tokens of v; prefix tokens (the first N - h*w) stay as they are.

    Args:
        v: (B, H, N, P), any strides.
        hw: grid (h, w) of the last h*w tokens.
        inplace: overwrite v where no gradient is recorded.

    Returns:
        (B, H, N, P) in v's dtype and, where dense, v's strides; rotated in fp32 at least. Nothing
        is saved for backward: the angles are recomputed.
    """
    if v.shape[-2] < hw[0] * hw[1]:
        raise ValueError(f'a grid of {hw} needs {hw[0] * hw[1]} tokens, got {v.shape[-2]}')
    if own_backward(v):
        return _Rope.apply(v, tuple(hw), mode, base, 1)
    return _rotate(v, hw, mode, base, 1, inplace)


def _rotate(v: Tensor, hw, mode, base, direction, inplace=False) -> Tensor:
    dtype = torch.promote_types(v.dtype, torch.float32)
    axes = _axis_angles(hw, v.shape[-1], mode, base, v.device, dtype)
    prefix = v.shape[-2] - hw[0] * hw[1]
    if plain():  # compilers and exporters know no complex numbers
        angles = F.pad(_over_grid(axes, hw), (0, 0, prefix, 0)) * direction
        even, odd = v.to(dtype).unflatten(-1, (-1, 2)).unbind(-1)
        cos, sin = angles.cos(), angles.sin()
        turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1)
        return turned.flatten(-2).to(v.dtype)
    # sine and cosine of h + w positions, not of h * w
    turn = _over_grid([torch.polar(torch.ones_like(a), a * direction) for a in axes], hw)
    if prefix:
        turn = torch.cat([turn.new_ones(prefix, turn.shape[1]), turn])
    pairs = torch.view_as_complex(v.to(dtype).unflatten(-1, (-1, 2)))
    if inplace and v.dtype == dtype:
        pairs.mul_(turn)
        return v
    return torch.view_as_real(pairs * turn).flatten(-2).to(v.dtype)


class _Rope(torch.autograd.Function):

    @staticmethod
    def forward(ctx, v, hw, mode, base, direction):
        ctx.args = hw, mode, base, -direction
        return _rotate(v, hw, mode, base, direction)

    @staticmethod
    def backward(ctx, grad):
        turn = _Rope.apply if differentiated_again() else _rotate
        return turn(grad, *ctx.args), None, None, None, None
