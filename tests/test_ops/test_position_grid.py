import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mmext.ops import resize_position_grid, sincos_position_grid


@pytest.mark.parametrize('new', [(7, 28), (28, 7), (64, 48), (14, 14)])
@pytest.mark.parametrize('prefix', [0, 1, 2])
def test_resize_is_torch_bicubic_of_the_grid(new, prefix):
    torch.manual_seed(0)
    pos = torch.randn(1, prefix + 196, 8)
    got = resize_position_grid(pos, (14, 14), new, prefix)
    grid = pos[0, prefix:].t().reshape(1, 8, 14, 14)
    want = F.interpolate(grid, size=new, mode='bicubic').reshape(8, -1).t()
    assert torch.equal(got[0, :prefix], pos[0, :prefix])
    torch.testing.assert_close(got[0, prefix:], want)


def test_wrong_count_is_an_error():
    with pytest.raises(ValueError, match='197 positions'):
        resize_position_grid(torch.zeros(1, 197, 4), (14, 14), (7, 7), 0)


def test_sincos_is_the_closed_formula():
    got = sincos_position_grid((3, 5), 16, num_prefix_tokens=1)[0].cpu().numpy()
    assert (got[0] == 0).all()
    omega = 1 / 10000 ** (np.arange(4) / 4)
    for y in range(3):
        for x in range(5):
            want = np.concatenate([np.sin(x * omega), np.cos(x * omega),
                                   np.sin(y * omega), np.cos(y * omega)])
            np.testing.assert_allclose(got[1 + y * 5 + x], want, atol=1e-6)
    with pytest.raises(ValueError, match='multiple of 4'):
        sincos_position_grid((2, 2), 6)
