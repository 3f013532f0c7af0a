"""Which key-value columns bias-pruned attention keeps.

Symbols: B samples, H heads, N tokens, k kept columns, L layers. Selection is hard, per sample, head
and layer, by the key bias b (B, H, N) alone ("Exploiting Biases in Attention for Transformers",
2026). All functions work on detached values; no gradient flows through a choice.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mmext.ops.autograd import plain

# A ratio such as .9 + (.1 - .9) * l / (L - 1) carries rounding error: .09999999999999998 * 100
# must still floor to 10.
FLOOR_SLACK = 1e-9


def check_ratio(ratio: float, name: str = 'keep_ratio') -> float:
    """Return ``ratio`` as a float; ValueError unless 0 < ratio <= 1."""
    number = isinstance(ratio, (int, float)) and not isinstance(ratio, bool)
    if not number or not 0 < ratio <= 1:
        raise ValueError(f'{name}={ratio!r} must be a number with 0 < {name} <= 1')
    return float(ratio)


# Share of the way from the first to the last ratio at depth t in [0, 1]. All are symmetric about
# the middle, so that every shape has the mean of its ends.
SHAPES = {
    'linear': lambda t: t,
    'cosine': lambda t: (1 - math.cos(math.pi * t)) / 2,
    'smoothstep': lambda t: t * t * (3 - 2 * t),
    'sigmoid': lambda t: (math.tanh(3 * (2 * t - 1)) / math.tanh(3) + 1) / 2,
}


def keep_ratio_schedule(
        keep_ratio: float | Sequence[float | None] | Mapping | None, depth: int,
        name: str = 'keep_ratio') -> list[float | None]:
    """Keep ratio of every layer.

    The paper's GFLOPs fix the ends (.9 and .1), their mean over depth and the rounding down; the
    linear shape is this project's choice, the other shapes give the same GFLOPs.

    Args:
        keep_ratio: None keeps all columns; a number holds for all layers; a pair (r0, r1) is the
            linear schedule r_l = r0 + (r1 - r0) * l / (L - 1), both ends included;
            ``dict(start=r0, end=r1, shape=...)`` one of another shape (``SHAPES``); a sequence of
            ``depth`` entries gives each layer its own, None entries keeping all.
        depth: number of layers L.
        name: what messages call it.

    Returns:
        ``depth`` entries, each a ratio or None.

    Raises:
        ValueError: a ratio is outside (0, 1], the sequence has another length, or the dict has
            other keys or an unknown shape.
    """
    if keep_ratio is None:
        return [None] * depth
    shape = 'linear'
    if isinstance(keep_ratio, Mapping):
        if not {'start', 'end'} <= set(keep_ratio) <= {'start', 'end', 'shape'}:
            raise ValueError(f'{name}={dict(keep_ratio)!r} must have start, end and, optionally, '
                             'shape')
        shape = keep_ratio.get('shape', 'linear')
        if shape not in SHAPES:
            raise ValueError(f'{name}: shape={shape!r} must be one of {tuple(SHAPES)}')
        keep_ratio = keep_ratio['start'], keep_ratio['end']
    elif not isinstance(keep_ratio, Sequence) or isinstance(keep_ratio, str):
        return [check_ratio(keep_ratio, name)] * depth
    elif len(keep_ratio) not in (2, depth):
        raise ValueError(
            f'{name}={keep_ratio!r} has {len(keep_ratio)} entries; give one number, a pair '
            f'(first, last) for a linear schedule, or one entry for each of the {depth} layers')
    elif len(keep_ratio) == depth:
        return [None if ratio is None else check_ratio(ratio, name) for ratio in keep_ratio]
    if None in keep_ratio:
        raise ValueError(f'{name}={keep_ratio!r}: both ends of a schedule must be numbers')
    first, last = (check_ratio(ratio, name) for ratio in keep_ratio)
    return [first + (last - first) * SHAPES[shape](layer / max(depth - 1, 1))
            for layer in range(depth)]


class KeepRule(NamedTuple):
    """How one layer chooses: a keep ratio, a probability threshold, or neither (all columns)."""

    ratio: float | None = None
    tau: float | None = None


def keep_rules(keep_ratio, tau: float | None, depth: int, end: str = '') -> list[KeepRule]:
    """The rules of all layers, checked.

    Args:
        keep_ratio: as in ``keep_ratio_schedule``.
        tau: probability threshold, in (0, 1], for all layers.
        depth: number of layers.
        end: '_val' where messages speak of the options of validation.

    Raises:
        ValueError: both are given, or one is out of range.
    """
    if keep_ratio is not None and tau is not None:
        raise ValueError(
            f'keep_ratio{end}={keep_ratio} and tau{end}={tau} exclude each other: set '
            f'keep_ratio{end}=None or tau{end}=None'
            + ("; 'same', the default, takes the value of training" if end else ''))
    if tau is not None:
        return [KeepRule(tau=check_ratio(tau, f'tau{end}'))] * depth
    return [KeepRule(ratio=ratio) for ratio in keep_ratio_schedule(keep_ratio, depth,
                                                                   f'keep_ratio{end}')]


class Columns(NamedTuple):
    """Key-value columns to attend to.

    Attributes:
        index: (B, H, k) columns to be gathered, in no particular order; None gathers nothing.
        kept: (B, H, k) bool, or (B, H, N) without index; False ones are masked. None masks nothing.
    """

    index: Tensor | None = None
    kept: Tensor | None = None

    def gather(self, x: Tensor) -> Tensor:
        """x (B, H, N) or (B, H, N, D) -> its entries at the columns, (B, H, k) or (B, H, k, D)."""
        if self.index is None:
            return x
        if x.dim() == 3:
            return x.gather(2, self.index)
        return x.gather(2, self.index[..., None].expand(-1, -1, -1, x.shape[-1]))

    def gather_logits(self, x: Tensor) -> Tensor:
        """x broadcastable to (B, H, M, N) -> (B, H, M, k)."""
        if self.index is None or x.shape[-1] == 1:
            return x
        x = x.expand(*self.index.shape[:2], -1, -1)
        return x.gather(3, self.index[:, :, None].expand(-1, -1, x.shape[2], -1))

    def mask(self, like: Tensor) -> Tensor:
        """(B, H, N) bool, True where kept; ``like`` is a tensor of that shape."""
        if self.index is not None:
            return columns_to_mask(self.index, self.kept, like.shape[-1])
        if self.kept is not None:
            return self.kept
        return torch.ones_like(like, dtype=torch.bool)


def choose_columns(rank: Tensor, rule: KeepRule, valid: Tensor | None = None,
                   num_protected: int = 0, gather: bool = True) -> Columns:
    """The columns that a rule keeps.

    Args:
        rank: (B, H, N), the key bias.
        valid: (B, N) bool, False for padding, which is never attended to.
        num_protected: the first columns are always kept, within k.
        gather: to be gathered; else as a mask over all columns. A threshold keeps a number that
            depends on the data: compilers, transforms and tensors without data get a mask.
    """
    if rule.tau is None and (rule.ratio is None
                             or num_kept(rule.ratio, rank.shape[-1]) == rank.shape[-1]):
        return Columns(None, None if valid is None else valid[:, None].expand_as(rank))
    if rule.tau is None:
        index, kept = top_k_columns(rank, rule.ratio, valid, num_protected)
    else:
        index, kept = threshold_columns(rank, rule.tau, valid, num_protected)
        gather = gather and not (plain() or rank.is_meta)
        if gather:
            longest = max(int(kept.flatten(0, -2).any(0).sum()), 1)  # 1: of no samples at all
            index, kept = index[..., :longest], kept[..., :longest]
    if gather:
        return Columns(index, kept)
    return Columns(None, columns_to_mask(index, kept, rank.shape[-1]))


def num_kept(ratio: float, num_tokens: int) -> int:
    """k = max(1, floor(ratio * N))."""
    return max(1, math.floor(ratio * num_tokens + FLOOR_SLACK))


def _priority(bias: Tensor, valid: Tensor | None, num_protected: int) -> Tensor:
    """Ranking key: protected columns first, padding last."""
    key = bias.detach()
    if num_protected or valid is not None:
        key = key.clone()
    if valid is not None:
        key.masked_fill_(~valid[:, None], -math.inf)
    if num_protected:
        key[..., :num_protected] = math.inf
    return key


def top_k_columns(bias: Tensor, ratio: float, valid: Tensor | None = None,
                  num_protected: int = 0) -> tuple[Tensor, Tensor | None]:
    """The k = max(1, floor(ratio * N)) columns of largest bias.

    With ``valid`` each sample keeps max(1, floor(ratio * its number of valid tokens)); the index
    still has k entries, so that shapes are static, and ``kept`` marks those that count.

    Args:
        bias: key bias (B, H, N).
        ratio: share of the columns to keep, in (0, 1].
        valid: (B, N) bool, False for padding; padding ranks last.
        num_protected: the first columns are always kept, within k (``keep_prefix``).

    Returns:
        index (B, H, k) of the kept columns, kept (B, H, k) bool or None when all of them count.
    """
    k = max(num_kept(ratio, bias.shape[-1]), num_protected)
    index = _priority(bias, valid, num_protected).topk(k, dim=-1, sorted=valid is not None)[1]
    if valid is None:
        return index, None
    count = (valid.sum(-1).double() * ratio + FLOOR_SLACK).floor().clamp(min=max(1, num_protected))
    rank = torch.arange(k, device=bias.device)
    return index, (rank < count[:, None, None]).expand_as(index)


def threshold_columns(bias: Tensor, tau: float, valid: Tensor | None = None,
                      num_protected: int = 0) -> tuple[Tensor, Tensor]:
    """The smallest set of columns whose mass under softmax(b) reaches ``tau``, at least one.

    Args:
        bias: key bias (B, H, N).
        tau: probability mass to keep, in (0, 1]; 1 keeps every valid column.
        valid, num_protected: as in ``top_k_columns``.

    Returns:
        index (B, H, N): all columns, largest bias first; kept (B, H, N) bool: a prefix of it.
    """
    key = _priority(bias, valid, num_protected)
    index = key.argsort(dim=-1, descending=True, stable=True)
    valid_bias = bias.detach().float()
    if valid is not None:
        valid_bias = valid_bias.masked_fill(~valid[:, None], -math.inf)
    mass = valid_bias.softmax(-1).gather(-1, index)
    before = mass.cumsum(-1) - mass  # mass of the columns ranked above
    kept = before < tau if tau < 1 else torch.ones_like(index, dtype=torch.bool)
    if num_protected:
        kept[..., :num_protected] = True
    if valid is not None:
        kept = kept & valid[:, None].expand_as(index).gather(-1, index)
    return index, kept


def columns_to_mask(index: Tensor, kept: Tensor | None, num_tokens: int) -> Tensor:
    """index, kept (B, H, k) -> (B, H, N) bool, True where the column is kept."""
    mask = torch.zeros(*index.shape[:-1], num_tokens, dtype=torch.bool, device=index.device)
    return mask.scatter(-1, index, torch.ones_like(index, dtype=torch.bool)
                        if kept is None else kept)
