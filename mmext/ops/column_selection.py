"""Which key-value columns bias-pruned attention keeps.

Symbols: B samples, H heads, N tokens, k kept columns, L layers. Selection is hard, per sample, head
and layer, by the key bias b (B, H, N) alone ("Exploiting Biases in Attention for Transformers",
2026). All functions work on detached values; no gradient flows through a choice.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

# A ratio such as .9 + (.1 - .9) * l / (L - 1) carries rounding error: .09999999999999998 * 100
# must still floor to 10.
FLOOR_SLACK = 1e-9


def check_ratio(ratio: float, name: str = 'keep_ratio') -> float:
    """Return ``ratio`` as a float; ValueError unless 0 < ratio <= 1."""
    number = isinstance(ratio, (int, float)) and not isinstance(ratio, bool)
    if not number or not 0 < ratio <= 1:
        raise ValueError(f'{name}={ratio!r} must be a number with 0 < {name} <= 1')
    return float(ratio)


def keep_ratio_schedule(
        keep_ratio: float | Sequence[float | None] | None, depth: int,
        name: str = 'keep_ratio') -> list[float | None]:
    """Keep ratio of every layer.

    Args:
        keep_ratio: None keeps all columns; a number holds for all layers; a pair (r0, r1) is the
            linear schedule r_l = r0 + (r1 - r0) * l / (L - 1), both ends included; a sequence of
            ``depth`` entries gives each layer its own, None entries keeping all.
        depth: number of layers L.
        name: what messages call it.

    Returns:
        ``depth`` entries, each a ratio or None.

    Raises:
        ValueError: a ratio is outside (0, 1], or the sequence has another length.
    """
    if keep_ratio is None:
        return [None] * depth
    if not isinstance(keep_ratio, Sequence) or isinstance(keep_ratio, str):
        return [check_ratio(keep_ratio, name)] * depth
    if len(keep_ratio) not in (2, depth):
        raise ValueError(
            f'{name}={keep_ratio!r} has {len(keep_ratio)} entries; give one number, a pair '
            f'(first, last) for a linear schedule, or one entry for each of the {depth} layers')
    ratios = [None if ratio is None else check_ratio(ratio, name) for ratio in keep_ratio]
    if len(ratios) == depth:
        return ratios
    if None in ratios:
        raise ValueError(f'{name}={keep_ratio!r}: both ends of a schedule must be numbers')
    first, last = ratios
    return [first + (last - first) * layer / max(depth - 1, 1) for layer in range(depth)]


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
        num_protected: the first columns are always kept, within k (``keep_cls``).

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
