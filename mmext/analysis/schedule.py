"""Search for the keep ratio of every layer that retains the most attention mass.

Attention over N tokens and k kept columns costs 2 N k d MACs, in every layer the same, so a
FLOP budget is a budget of kept columns summed over the layers.
"""

from collections.abc import Callable, Sequence

import numpy as np

from mmext.ops.column_selection import num_kept


def columns_within(budget_gflops: float, dense_gflops: float, num_tokens: int, dim: int,
                   num_layers: int) -> int:
    """Columns, summed over the layers, that a budget pays for.

    Args:
        budget_gflops: 2 x MACs / 1e9 for one image, of the same part that ``dense_gflops`` counts.
        dense_gflops: with all N columns in each of the ``num_layers`` layers that can be pruned.
        num_tokens, dim: tokens N and channels d.

    Raises:
        ValueError: the budget does not pay for one column a layer.
    """
    per_column = 4 * num_tokens * dim / 1e9
    full = num_layers * num_tokens
    columns = min(full, full + int(np.floor((budget_gflops - dense_gflops) / per_column + 1e-6)))
    if columns < num_layers:
        least = dense_gflops - (full - num_layers) * per_column
        raise ValueError(f'a budget of {budget_gflops:g} GFLOPs is below what remains with one '
                         f'column a layer, {least:.3f}; the dense model takes {dense_gflops:.3f}')
    return columns


def best_schedule(mass: np.ndarray, ratios: Sequence[float], num_tokens: int,
                  columns: int) -> list[float]:
    """The ratio of each layer that maximizes the mean retained mass within a column budget.

    Exact over the given ratios (dynamic programming over layers and columns spent), so no
    assumption about the curves is made.

    Args:
        mass: (L, R) retained mass of layer l at ratio r.
        ratios: R keep ratios in (0, 1].
        columns: sum over the layers of k = max(1, floor(r N)) at most.

    Raises:
        ValueError: even the smallest ratio in every layer exceeds the budget.
    """
    mass = np.asarray(mass, dtype=np.float64)
    cost = [num_kept(ratio, num_tokens) for ratio in ratios]
    if len(mass) * min(cost) > columns:
        raise ValueError(f'{columns} columns do not suffice for {len(mass)} layers with at least '
                         f'{min(cost)} each; add smaller ratios than {min(ratios):g}')
    best = np.zeros(columns + 1)
    choices = []
    for row in mass:
        new, choice = np.full(columns + 1, -np.inf), np.zeros(columns + 1, dtype=np.int32)
        for i, (gain, spent) in enumerate(zip(row, cost, strict=True)):
            if spent > columns:
                continue
            candidate = best[:columns + 1 - spent] + gain
            better = candidate > new[spent:] + 1e-12
            new[spent:][better] = candidate[better]
            choice[spent:][better] = i
        best = new
        choices.append(choice)
    left, schedule = columns, []
    for choice in reversed(choices):
        i = int(choice[left])
        schedule.append(ratios[i])
        left -= cost[i]
    return schedule[::-1]


def threshold_of_ratio(measure: Callable[[float], float], wished: float, tolerance: float = 2e-3,
                       steps: int = 20) -> tuple[float, float]:
    """The threshold tau whose pruning ratio comes closest to ``wished``, by halving.

    Args:
        measure: tau -> pruning ratio, which falls with tau.
        wished: in (0, 1).
        tolerance: a ratio as close as this ends the search.
        steps: evaluations at most.

    Returns:
        tau and its ratio.

    Raises:
        ValueError: ``wished`` is out of range.
    """
    if not 0 < wished < 1:
        raise ValueError(f'pruning ratio {wished} must lie between 0 and 1')
    low, high, best = 0., 1., None
    for _ in range(steps):
        tau = (low + high) / 2
        ratio = measure(tau)
        if best is None or abs(ratio - wished) < abs(best[1] - wished):
            best = tau, ratio
        if abs(ratio - wished) <= tolerance:
            break
        low, high = (low, tau) if ratio < wished else (tau, high)
    return best
