"""Rotary position embedding (RoFormer, arXiv 2104.09864) over a token grid.

Channel pairs (2i, 2i+1) of each head are rotated by position * base^(-i/m). 'axial': the first
half of the channels turns with the row, the second half with the column, m = P/4 pairs each;
'raster': all m = P/2 pairs turn with the raster index. Where DMST rotates is not stated by
arXiv 2601.17042; see ``mmext.layers.dmsa`` for the choice made here.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

ROPE_MODES = ('axial', 'raster')


def rope_angles(hw: tuple[int, int], head_dim: int, mode: str = 'axial', base: float = 10000.,
                device=None, dtype: torch.dtype = torch.float32) -> Tensor:
    """Angles (h*w, P/2) in radians, tokens in raster order."""
    if mode not in ROPE_MODES:
        raise ValueError(f'RoPE mode {mode!r} is unknown, choose one of {ROPE_MODES}')
    axes = 2 if mode == 'axial' else 1
    if head_dim % (2 * axes):
        raise ValueError(
            f"RoPE '{mode}' needs a head dimension divisible by {2 * axes}, got {head_dim}; change "
            "dim or num_heads, or switch RoPE off")
    pairs = head_dim // 2 // axes
    freqs = base ** (-torch.arange(pairs, device=device, dtype=dtype) / pairs)
    if axes == 1:
        return torch.arange(hw[0] * hw[1], device=device, dtype=dtype)[:, None] * freqs
    rows, cols = (torch.arange(size, device=device, dtype=dtype)[:, None] * freqs for size in hw)
    return torch.cat([rows[:, None].expand(*hw, pairs), cols[None].expand(*hw, pairs)],
                     dim=-1).flatten(0, 1)


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
    if torch.is_grad_enabled() and v.requires_grad:
        return _Rope.apply(v, tuple(hw), mode, base)
    return _rotate(v, hw, mode, base, 1, inplace)


def _rotate(v: Tensor, hw, mode, base, direction, inplace=False) -> Tensor:
    dtype = torch.promote_types(v.dtype, torch.float32)
    angles = rope_angles(hw, v.shape[-1], mode, base, v.device, dtype) * direction
    prefix = v.shape[-2] - angles.shape[0]
    if prefix:
        angles = torch.cat([angles.new_zeros(prefix, angles.shape[1]), angles])
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        # compilers and exporters know no complex numbers
        even, odd = v.to(dtype).unflatten(-1, (-1, 2)).unbind(-1)
        cos, sin = angles.cos(), angles.sin()
        turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1)
        return turned.flatten(-2).to(v.dtype)
    turn = torch.polar(torch.ones_like(angles), angles)
    pairs = torch.view_as_complex(v.to(dtype).unflatten(-1, (-1, 2)))
    if inplace and v.dtype == dtype:
        pairs.mul_(turn)
        return v
    return torch.view_as_real(pairs * turn).flatten(-2).to(v.dtype)


class _Rope(torch.autograd.Function):

    @staticmethod
    def forward(ctx, v, hw, mode, base):
        ctx.args = hw, mode, base
        return _rotate(v, hw, mode, base, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return _rotate(grad, *ctx.args, -1), None, None, None
