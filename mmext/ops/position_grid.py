"""Learned position embeddings on a grid: resampling and 2-D sine-cosine initial values.

Symbols: P prefix tokens (class token) first, grid h x w in raster order, C channels.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def resize_position_grid(pos: Tensor, old: tuple[int, int], new: tuple[int, int],
                         num_prefix_tokens: int = 0) -> Tensor:
    """Resample positions from one grid to another, prefix tokens untouched.

    Torch's bicubic interpolation without antialiasing, as DeiT's and mmpretrain's code.

    Args:
        pos: (1, P + h * w, C) for the grid ``old`` = (h, w).
        new: (h', w').
        num_prefix_tokens: P.

    Returns:
        (1, P + h' * w', C).

    Raises:
        ValueError: the number of tokens does not fit the grid.
    """
    if pos.shape[1] != num_prefix_tokens + old[0] * old[1]:
        raise ValueError(f'{pos.shape[1]} positions are not {num_prefix_tokens} prefix tokens and '
                         f'a grid of {old[0]} x {old[1]}')
    if tuple(old) == tuple(new):
        return pos
    prefix, grid = pos[:, :num_prefix_tokens], pos[:, num_prefix_tokens:]
    grid = grid.float().reshape(1, *old, -1).permute(0, 3, 1, 2)
    grid = F.interpolate(grid, size=tuple(new), mode='bicubic', align_corners=False)
    return torch.cat([prefix, grid.flatten(2).transpose(1, 2).to(pos.dtype)], 1)


def sincos_position_grid(hw: tuple[int, int], dim: int, num_prefix_tokens: int = 0,
                         temperature: float = 1e4) -> Tensor:
    """2-D sine-cosine positions as MAE (arXiv 2111.06377): [sin x, cos x, sin y, cos y].

    Returns:
        (1, P + h * w, dim), zero for the prefix tokens.

    Raises:
        ValueError: ``dim`` is not a multiple of 4.
    """
    if dim % 4:
        raise ValueError(f'sine-cosine positions need a width that is a multiple of 4, got {dim}')
    omega = temperature ** -(torch.arange(dim // 4, dtype=torch.float64) / (dim // 4))
    y, x = torch.meshgrid(*(torch.arange(n, dtype=torch.float64) for n in hw), indexing='ij')
    x, y = x.flatten()[:, None] * omega, y.flatten()[:, None] * omega
    grid = torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], 1).float()
    return torch.cat([grid.new_zeros(num_prefix_tokens, dim), grid])[None]
