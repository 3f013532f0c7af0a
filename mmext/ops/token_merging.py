"""Token merging (ToMe, Bolya et al., arXiv 2210.09461; github.com/facebookresearch/ToMe).

Bipartite soft matching between even and odd tokens, merging by size-weighted mean, and the way back
to the full grid. Symbols: B samples, N tokens, C channels, r tokens merged away.

Differences from the official code: unmerged tokens always stay in order (there only with a class
token), padding has size 0 and is not merged with image while another pair is left, and a map of
where each original token went is kept for dense features.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Matching(NamedTuple):
    """Which even tokens (A) stay or are merged, and into which odd tokens (B)."""

    unmerged: Tensor  # (B, |A| - r) positions within A, ascending
    merged: Tensor  # (B, r) positions within A
    target: Tensor  # (B, r) positions within B


def scaled_r(r: int, num_tokens: int, reference: int = 196) -> int:
    """r' = round(r * N / 196): the same share of the tokens at another image size."""
    return round(r * int(num_tokens) / reference)  # torch.jit.trace counts in tensors


def merge_schedule(r: int | Sequence, depth: int) -> list[int]:
    """Tokens to merge in every layer.

    Args:
        r: a constant; (r, inflect): linear from int(r * (1 - inflect)) to 2 r minus that (inflect
            -1 decreasing, +1 increasing, the official ``parse_r``); or ``depth`` numbers.

    Raises:
        ValueError: a number is no integer or negative, or the sequence has another length.
    """
    inflected = isinstance(r, Sequence) and len(r) == 2 != depth
    given = r[:1] if inflected else r if isinstance(r, Sequence) else [r] * depth
    if not (inflected or len(given) == depth) or not all(
            isinstance(count, int) and count >= 0 for count in given):
        raise ValueError(f'token merging r={r!r}: give an integer, (integer, inflect) or {depth} '
                         'integers, none negative')
    if not inflected:
        return list(given)
    mean, inflect = r
    if not -1 <= inflect <= 1:
        raise ValueError(f'token merging r={r!r}: inflect must be within -1..1')
    first = int(mean * (1 - inflect))
    step = (2 * mean - 2 * first) / max(depth - 1, 1)
    return [int(first + step * layer) for layer in range(depth)]


def bipartite_soft_matching(metric: Tensor, r: int, num_protected: int = 0,
                            valid: Tensor | None = None) -> Matching | None:
    """Match the r even tokens most similar to an odd one.

    Args:
        metric: (B, N, D), e.g. keys averaged over heads; compared by cosine.
        r: tokens to remove, limited to (N - num_protected) // 2.
        num_protected: 1 keeps the first (class) token out, 0 does not.
        valid: (B, N) bool; a pair of image and padding is the last choice.

    Returns:
        the matching, or None when nothing is to be merged.
    """
    if num_protected not in (0, 1):
        raise ValueError(f'num_protected={num_protected} must be 0 or 1')
    r = min(r, (metric.shape[1] - num_protected) // 2)
    if r <= 0:
        return None
    with torch.no_grad():
        metric = torch.nn.functional.normalize(metric.float(), dim=-1)
        scores = metric[:, ::2] @ metric[:, 1::2].transpose(1, 2)
        if valid is not None:
            scores = scores.masked_fill(valid[:, ::2, None] != valid[:, None, 1::2], -2.0)
        if num_protected:
            scores[:, 0] = -torch.inf
        best, target = scores.max(-1)
        order = best.argsort(dim=-1, descending=True, stable=True)
        merged = order[:, :r]
        return Matching(order[:, r:].sort(-1)[0], merged, target.gather(1, merged))


def merge_tokens(x: Tensor, matching: Matching, size: Tensor) -> tuple[Tensor, Tensor]:
    """Size-weighted mean of each odd token and the even ones merged into it.

    Args:
        x: (B, N, C); size: (B, N), how many original tokens each stands for, 0 for padding.

    Returns:
        x (B, N - r, C) as [unmerged even tokens, odd tokens], size (B, N - r).
    """
    unmerged, merged, target = matching
    # sums of many tokens may leave the range of fp16
    weighted = x.to(torch.promote_types(x.dtype, torch.float32)) * size.unsqueeze(-1)

    def take(tokens, index):
        return tokens.gather(1, index.unsqueeze(-1).expand(-1, -1, tokens.shape[-1]))

    even, odd = weighted[:, ::2], weighted[:, 1::2]
    odd = odd.scatter_add(
        1, target.unsqueeze(-1).expand(-1, -1, x.shape[-1]), take(even, merged))
    odd_size = size[:, 1::2].scatter_add(1, target, size[:, ::2].gather(1, merged))
    odd = odd / odd_size.clamp(min=1).unsqueeze(-1)
    x = torch.cat([take(x[:, ::2], unmerged), odd.to(x.dtype)], 1)
    return x, torch.cat([size[:, ::2].gather(1, unmerged), odd_size], 1)


def track_tokens(source: Tensor, matching: Matching) -> Tensor:
    """Follow the original tokens through a merge.

    Args:
        source: (B, N0), for each original token the position of the current one that holds it.

    Returns:
        the same for the positions after the merge.
    """
    unmerged, merged, target = matching
    num_unmerged = unmerged.shape[1]
    num_even = num_unmerged + merged.shape[1]
    even = source.new_zeros(source.shape[0], num_even)
    even = even.scatter(1, unmerged, torch.arange(
        num_unmerged, device=source.device).expand_as(unmerged))
    even = even.scatter(1, merged, target + num_unmerged)
    # an odd position may lie past the last even one, hence the clamp; where() discards that value
    half = source // 2
    return torch.where(source % 2 == 0, even.gather(1, half.clamp(max=num_even - 1)),
                       num_unmerged + half)


def unmerge_tokens(x: Tensor, source: Tensor) -> Tensor:
    """x (B, N, C) merged tokens, source (B, N0) -> (B, N0, C), each original token its value."""
    return x.gather(1, source.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
