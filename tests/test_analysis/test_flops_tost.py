"""DMST and ToST: FLOPs counted by running them against the closed formulas."""

import pytest
import torch

from mmext.analysis import flop_formulas as flops
from mmext.analysis.flop_counter import count_flops
from mmext.models import DMST


@pytest.mark.parametrize('shape', [(224, 224), (96, 170)])
@pytest.mark.parametrize('attention', ['dmsa', 'tssa', 'mssa', 'mhsa'])
def test_counter_equals_formula(attention, shape):
    model = DMST('tiny', attn=attention).eval()
    count = count_flops(model, torch.rand(1, 3, *shape)).total
    h, w = flops.patch_grid(shape)
    formula = 2 * flops.tost_macs(shape, 192, 12, 4, attention=attention, num_classes=0)
    # the second moments, N d a layer, are seen only where they run as a matrix product
    unseen = 2 * 12 * h * w * 192 if attention in ('dmsa', 'tssa') else 0
    assert formula - unseen <= count <= formula
    assert unseen < 2e-3 * formula
