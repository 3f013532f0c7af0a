"""Dropped columns counted in passing, against the layers' own masks; the search for tau."""

import logging
from types import SimpleNamespace

import pytest
import torch

from mmext.analysis.schedule import threshold_of_ratio
from mmext.engine import PruningRatioHook
from mmext.layers.pruning_ratio import PruningRatio
from mmext.models import BiasPrunedViT


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = BiasPrunedViT('tiny-test', img_size=64, tau=.6).eval()
    for block in model.blocks:
        torch.nn.init.normal_(block.attn.key_bias.weight, std=.2)
    return model


def by_hand(model, images):
    """Layer by layer: one minus the share of True in the masks."""
    found = model.forward_intermediates(images)
    return [1 - found[layer]['kept'].double().mean().item() for layer in range(2)]


@torch.no_grad()
@pytest.mark.parametrize('val_mode', ['mask', 'gather'])
def test_the_ratio_is_that_of_the_masks(model, val_mode):
    for block in model.blocks:
        block.attn.configure(val_mode=val_mode)
    images = torch.randn(5, 3, 64, 64)
    with PruningRatio(model) as pruned:
        model(images[:3])
        model(images[3:])
    expected = by_hand(model, images)
    assert pruned.of_layers == pytest.approx(expected) and 0 < expected[0] != expected[1]
    assert pruned.ratio == pytest.approx(sum(expected) / 2)
    before = pruned.total.clone()
    model(images)
    assert torch.equal(pruned.total, before)  # left: counts no more


@torch.no_grad()
def test_padding_counts_as_neither():
    """Half of the columns are padding; .5 keeps floor(.5 * 8) = 4 of 8, class token apart."""
    model = BiasPrunedViT('tiny-test', img_size=64, keep_ratio=.5, use_valid_mask=True,
                          with_cls_token=False, out_type='featmap').eval()
    images = torch.randn(2, 4, 64, 64)
    images[:, 3] = (torch.arange(64) < 32).float()
    with PruningRatio(model) as pruned:
        model(images)
    assert pruned.ratio == pytest.approx(.5)


@torch.no_grad()
def test_threshold_of_a_wished_ratio(model):
    images = torch.randn(4, 3, 64, 64)

    def measure(tau):
        model.set_tau(tau)
        with PruningRatio(model) as pruned:
            model(images)
        return pruned.ratio

    tau, ratio = threshold_of_ratio(measure, .5, tolerance=.02)
    assert abs(ratio - .5) <= .02 and measure(tau) == ratio
    tau, ratio = threshold_of_ratio(lambda tau: 1 - tau ** 2, .3, tolerance=1e-6, steps=40)
    assert tau == pytest.approx(.7 ** .5, abs=1e-5)
    with pytest.raises(ValueError, match='between 0 and 1'):
        threshold_of_ratio(measure, 1.)


@torch.no_grad()
def test_hook_adds_the_ratio_of_threshold_models(model, caplog):
    images, metrics = torch.randn(3, 3, 64, 64), {}
    runner = SimpleNamespace(model=model, logger=logging.getLogger('ratio'))
    hook = PruningRatioHook()
    with caplog.at_level(logging.INFO):
        hook.before_test_epoch(runner)
        model(images)
        hook.after_test_epoch(runner, metrics)
    expected = 100 * sum(by_hand(model, images)) / 2
    assert metrics == {'pruning_ratio': pytest.approx(expected)}
    assert f'pruning ratio: {expected:.2f} %' in caplog.text
    model.set_keep_ratio(.5)
    hook.before_test_epoch(runner)
    hook.after_test_epoch(runner, metrics := {})
    assert metrics == {}
