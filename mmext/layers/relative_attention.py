"""Bias-pruned attention with decomposed relative positions, as ViTDet and Segment Anything.

Source: MViTv2 (arXiv 2112.01526), ViTDet (arXiv 2203.16527; detectron2): q_i . R_h[y_i - y_j] +
q_i . R_w[x_i - x_j] on the logits. Names as there: ``rel_pos_h``, ``rel_pos_w``.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmext.layers.biased_attention import ALL_COLUMNS, BiasedAttention, Heads, add
from mmext.ops.column_selection import Columns


class RelativeBiasedAttention(BiasedAttention):
    """``BiasedAttention`` over a grid of patch tokens, without prefix tokens.

    Args:
        rel_pos_size: (h, w) of the grid that the positions are stored for; another grid, in
            forward or in a file that is loaded, is resampled linearly.
        pos_fit: 'resize', or 'crop': in forward a smaller grid takes the middle of the tables, so
            that distances keep their meaning.
        args, kwargs: of ``BiasedAttention``.
    """

    def __init__(self, *args, rel_pos_size: tuple[int, int],
                 pos_fit: Literal['resize', 'crop'] = 'resize', **kwargs):
        super().__init__(*args, **kwargs)
        self.pos_fit = pos_fit
        for name, size in zip(('rel_pos_h', 'rel_pos_w'), rel_pos_size, strict=True):
            table = torch.zeros(2 * size - 1, self.head_dim, device=self.proj.weight.device,
                                dtype=self.proj.weight.dtype)
            self.register_parameter(name, nn.Parameter(table))

    def project(self, x: Tensor, columns: Columns = ALL_COLUMNS, hw: tuple[int, int] | None = None,
                attn_mask: Tensor | None = None) -> Heads:
        heads = super().project(x, columns, attn_mask=attn_mask)
        tables = self.rel_pos_h, self.rel_pos_w
        if self.pos_fit == 'crop' and hw is not None:
            tables = (crop_table(table, size) for table, size in zip(tables, hw, strict=True))
        rel = relative_logits(heads.q, *tables, hw, columns)
        return heads._replace(logit_bias=add(rel, heads.logit_bias))

    def fit_state_dict(self, state_dict: dict[str, Tensor], prefix: str = '') -> list[str]:
        """Resample positions of another size, in place; returns what was done, in words."""
        done = []
        for name in ('rel_pos_h', 'rel_pos_w'):
            table, size = state_dict.get(prefix + name), len(getattr(self, name))
            if table is not None and len(table) != size:
                state_dict[prefix + name] = F.interpolate(
                    table.t()[None].float(), size=size, mode='linear')[0].t().to(table.dtype)
                done.append(f'{prefix}{name} {len(table)} to {size}')
        return done

    def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs):
        self.fit_state_dict(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def crop_table(table: Tensor, size: int) -> Tensor:
    """table (2 S - 1, D) of distances -(S - 1)..S - 1 -> those of a side ``size`` <= S."""
    margin = (len(table) + 1) // 2 - size
    return table[margin:len(table) - margin] if margin > 0 else table


def by_distance(table: Tensor, size: int) -> Tensor:
    """table (2 S - 1, D) of distances -(S - 1)..S - 1 -> (size, size, D), entry i, j of i - j.

    timm's ``get_rel_pos``, which makes its index on the CPU and so waits for the GPU in each block.
    """
    if len(table) != 2 * size - 1:
        table = F.interpolate(table.t()[None], size=2 * size - 1, mode='linear')[0].t()
    place = torch.arange(size, device=table.device)
    return table[place[:, None] - place + size - 1]


def relative_logits(q: Tensor, rel_pos_h: Tensor, rel_pos_w: Tensor, hw: tuple[int, int] | None,
                    columns: Columns = ALL_COLUMNS) -> Tensor:
    """Decomposed relative positions, added to the scaled logits.

    Args:
        q: (B, H, N, D), unscaled.
        rel_pos_h, rel_pos_w: (2 * size - 1, D).
        hw: grid, N = h * w.

    Returns:
        (B, H, N, N, or k for gathered columns), at least fp32.
    """
    height, width = hw if hw is not None else (0, 0)
    if q.shape[2] != height * width:
        raise ValueError(f'relative positions are for patch tokens of a grid hw alone, without '
                         f'class token: got {q.shape[2]} tokens and hw={hw}')
    grid = q.unflatten(2, (height, width))
    rel_h = by_distance(rel_pos_h, height).to(q.dtype)
    rel_w = by_distance(rel_pos_w, width).to(q.dtype)
    rel_h = torch.einsum('bnhwc,hkc->bnhwk', grid, rel_h).flatten(2, 3)
    rel_w = torch.einsum('bnhwc,wkc->bnhwk', grid, rel_w).flatten(2, 3)
    if columns.index is None:
        rel = (rel_h.unsqueeze(-1) + rel_w.unsqueeze(-2)).flatten(-2)
    else:
        index = columns.index[:, :, None].expand(-1, -1, q.shape[2], -1)
        rel = rel_h.gather(-1, index // width) + rel_w.gather(-1, index % width)
    return rel.to(torch.promote_types(rel.dtype, torch.float32))
