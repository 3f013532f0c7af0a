import pytest
import torch
from torch import nn

from mmext.analysis.intermediates import analyzed_layers, iterate_layers
from mmext.models import DMST, BiasPrunedViT

DEEP = dict(embed_dim=32, depth=4, num_heads=2)


def test_layers_come_one_by_one_whatever_the_budget():
    torch.manual_seed(0)
    model = BiasPrunedViT(DEEP, img_size=48).eval()
    images = torch.rand(2, 3, 40, 64)
    expected = model.forward_intermediates(images)
    for budget in (1, 30_000, 2**30):
        found = list(iterate_layers(model, images, budget=budget))
        assert [layer.index for layer in found] == [0, 1, 2, 3]
        for layer in found:
            assert layer.hw == (3, 4) and layer.first == 0
            for name, tensor in expected[layer.index].items():
                torch.testing.assert_close(layer.tensors[name], tensor)


def test_budget_bounds_what_one_pass_holds():
    model = BiasPrunedViT(DEEP, img_size=48).eval()
    passes = []
    original = model.forward_intermediates
    model.forward_intermediates = lambda x, layers: passes.append(layers) or original(x, layers)
    list(iterate_layers(model, torch.rand(1, 3, 48, 48), budget=1))
    assert passes == [(0,), (1,), (2,), (3,)]
    passes.clear()
    list(iterate_layers(model, torch.rand(1, 3, 48, 48), [3, -4]))
    assert passes == [(0,), (3,)]


@pytest.mark.parametrize('build', [
    lambda: BiasPrunedViT(DEEP, img_size=64, use_valid_mask=True),
    lambda: DMST(dict(embed_dim=32, depth=2, num_heads=4), out_type='featmap')])
def test_padding_is_cut_off(build):
    """32 x 48 pixels of image in 64 x 64: 2 x 3 of 4 x 4 patches, the class token stays."""
    torch.manual_seed(0)
    model = build().eval()
    images = torch.rand(2, 4, 64, 64)
    images[:, 3] = 1
    images[0, 3, 32:], images[0, 3, :, 48:] = 0, 0
    full = model.forward_intermediates(images)
    found = [layer for layer in iterate_layers(model, images) if layer.index == 1]
    assert [(layer.first, layer.hw) for layer in found] == [(0, (2, 3)), (1, (4, 4))]
    tensors, prefix = found[0].tensors, full[1]['x_in'].shape[1] - 16
    keep = [*range(prefix), *(prefix + i for i in (0, 1, 2, 4, 5, 6))]
    if 'attn' in tensors:
        torch.testing.assert_close(tensors['attn'][0], full[1]['attn'][0][:, keep][:, :, keep])
        torch.testing.assert_close(tensors['attn'].sum(-1), torch.ones(1, 2, 6 + prefix))
    else:
        torch.testing.assert_close(tensors['v'][0], full[1]['v'][0][:, keep])
        torch.testing.assert_close(tensors['membership'][0], full[1]['membership'][0][:, keep])
        torch.testing.assert_close(tensors['second_moment'], full[1]['second_moment'][:1])


def test_mask_that_the_model_does_not_use_cuts_nothing():
    model = BiasPrunedViT('tiny-test', img_size=64).eval()
    images = torch.rand(1, 4, 64, 64)
    images[:, 3, 32:] = 0
    assert next(iterate_layers(model, images)).hw == (4, 4)


def test_windowed_blocks():
    model = BiasPrunedViT(DEEP, img_size=64, with_cls_token=False, out_type='featmap',
                          window_size=2, global_blocks=[1, 3]).eval()
    assert analyzed_layers(model) == (1, 3)
    with pytest.raises(ValueError, match=r'blocks \[0\] attend within windows.*\[1, 3\]'):
        analyzed_layers(model, [0, 1])
    with pytest.raises(ValueError, match='out of range'):
        analyzed_layers(model, [4])


def test_other_backbones_are_refused():
    with pytest.raises(TypeError, match='Conv2d gives no intermediates'):
        next(iterate_layers(nn.Conv2d(3, 3, 1), torch.rand(1, 3, 8, 8)))
