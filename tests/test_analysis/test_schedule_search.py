import itertools

import numpy as np
import pytest
import torch

from mmext.analysis.flop_counter import count_flops
from mmext.analysis.schedule import best_schedule, columns_within
from mmext.models import BiasPrunedViT
from mmext.ops.column_selection import num_kept


@pytest.mark.parametrize('seed', range(5))
@pytest.mark.parametrize('columns', [6, 11, 17, 30])
def test_search_equals_trying_everything(seed, columns):
    """Three layers, four ratios of ten tokens, curves that rise but are not concave."""
    rng = np.random.default_rng(seed)
    ratios, tokens = [.2, .5, .7, 1.], 10
    mass = np.sort(rng.random((3, 4)), axis=1)
    found = best_schedule(mass, ratios, tokens, columns)
    cost = {ratio: num_kept(ratio, tokens) for ratio in ratios}
    assert sum(cost[ratio] for ratio in found) <= columns
    best = max(sum(mass[layer, ratios.index(r)] for layer, r in enumerate(choice))
               for choice in itertools.product(ratios, repeat=3)
               if sum(cost[r] for r in choice) <= columns)
    value = sum(mass[layer, ratios.index(r)] for layer, r in enumerate(found))
    assert value == pytest.approx(best, abs=1e-9)


def test_search_gives_columns_to_the_layer_that_needs_them():
    mass = [[.9, .95, 1.], [.1, .5, 1.]]
    assert best_schedule(np.array(mass), [.1, .5, 1.], 10, 11) == [.1, 1.]


def test_too_small_a_budget_is_an_error():
    with pytest.raises(ValueError, match='3 columns do not suffice for 2 layers'):
        best_schedule(np.ones((2, 2)), [.2, 1.], 10, 3)
    with pytest.raises(ValueError, match='one column a layer, 176'):
        columns_within(100., 485.6, 4096, 384, 12)


@pytest.mark.parametrize('ratio', [.1, .35, .8])
def test_columns_of_a_budget_are_those_the_counter_sees(ratio):
    """A budget of what a uniform ratio costs pays for exactly its columns."""
    model = BiasPrunedViT('tiny-test', img_size=96).eval()
    model.set_gather('after')
    image = torch.rand(1, 3, 96, 96)
    dense = count_flops(model, image).gflops
    model.set_keep_ratio(ratio)
    pruned = count_flops(model, image).gflops
    assert pruned < dense
    assert columns_within(pruned, dense, 37, 32, 2) == 2 * num_kept(ratio, 37)
    assert columns_within(2 * dense, dense, 37, 32, 2) == 2 * 37
