"""The input and index contract that all token backbones share."""

import pytest
import torch

from mmext.models.backbones.base import TokenBackbone, resolve_indices


def base(**kwargs):
    return TokenBackbone(depth=4, patch_size=16, **kwargs)


def test_padding_is_bottom_right_and_the_grid_is_rounded_up():
    x = torch.rand(2, 3, 33, 64)
    image, hw, valid = base().split_input(x)
    assert image.shape == (2, 3, 48, 64) and hw == (3, 4) and valid is None
    assert torch.equal(image[:, :, :33], x) and (image[:, :, 33:] == 0).all()


def test_token_is_valid_when_any_pixel_is():
    x = torch.rand(2, 4, 40, 48)
    x[:, 3] = 0
    x[0, 3, 16, 31] = 1
    image, hw, valid = base().split_input(x)
    assert image.shape[1] == 3 and hw == (3, 3)
    assert valid[0].nonzero().flatten().tolist() == [4]
    assert valid[1].all()  # nothing but padding: no token is left out


def test_a_full_mask_makes_every_token_valid():
    x = torch.ones(1, 4, 17, 33)
    assert base().split_input(x)[2].all()


@pytest.mark.parametrize('out_type, shape', [
    ('featmap', (2, 8, 2, 3)), ('cls_token', (2, 8)), ('avg_featmap', (2, 8)), ('raw', (2, 7, 8))])
def test_output_formats(out_type, shape):
    tokens = torch.randn(2, 7, 8)
    out = base(out_type=out_type).format_output(tokens, (2, 3))
    assert out.shape == shape
    if out_type == 'featmap':
        assert out.is_contiguous() and torch.equal(out[:, :, 1, 2], tokens[:, -1])
    if out_type == 'avg_featmap':
        torch.testing.assert_close(out, tokens[:, 1:].mean(1))


def test_indices():
    assert resolve_indices(-1, 4) == (3,)
    assert resolve_indices([0, -2], 4) == (0, 2)
    assert resolve_indices(None, 3) == (0, 1, 2)
    given = [-1, 0]
    assert base(out_indices=given).out_indices == (3, 0) and given == [-1, 0]
    for bad in (4, -5, [0, 9]):
        with pytest.raises(ValueError, match='out of range'):
            resolve_indices(bad, 4)


@pytest.mark.parametrize('shape', [(3, 32, 32), (1, 1, 32, 32), (1, 5, 32, 32)])
def test_wrong_input_names_its_shape(shape):
    with pytest.raises(ValueError, match='expected images'):
        base().split_input(torch.zeros(shape))
