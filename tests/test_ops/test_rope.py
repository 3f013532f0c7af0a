"""RoPE against timm's axial embedding and the definition in complex numbers."""

import pytest
import torch
from timm.layers.pos_embed_sincos import apply_rot_embed_cat, build_rotary_pos_embed

from mmext.ops.rope import apply_rope


@pytest.mark.parametrize('hw', [(4, 4), (3, 7), (1, 5)])
def test_axial_equals_timm(hw):
    torch.manual_seed(0)
    n, p = hw[0] * hw[1], 48
    v = torch.randn(2, n, 3, p).transpose(1, 2)
    sin, cos = build_rotary_pos_embed(list(hw), dim=p, temperature=10000., in_pixels=False)
    expected = apply_rot_embed_cat(v, torch.cat([sin, cos], dim=-1))
    torch.testing.assert_close(apply_rope(v, hw), expected, rtol=1e-5, atol=1e-5)


def test_raster_equals_definition():
    torch.manual_seed(1)
    v = torch.randn(1, 2, 6, 8, dtype=torch.float64)
    index = torch.arange(6, dtype=torch.float64)[:, None]
    turn = torch.exp(1j * index * 100.**(-torch.arange(4, dtype=torch.float64) / 4))
    expected = torch.view_as_real(torch.view_as_complex(v.unflatten(-1, (4, 2))) * turn).flatten(-2)
    torch.testing.assert_close(apply_rope(v, (2, 3), mode='raster', base=100.), expected)


def test_products_depend_on_relative_position_only():
    torch.manual_seed(2)
    a, b = torch.randn(2, 1, 1, 1, 16, dtype=torch.float64)
    turned_a = apply_rope(a.expand(1, 1, 25, 16), (5, 5)).unflatten(2, (5, 5))
    turned_b = apply_rope(b.expand(1, 1, 25, 16), (5, 5)).unflatten(2, (5, 5))
    first = (turned_a[:, :, 0, 1] * turned_b[:, :, 2, 2]).sum()
    second = (turned_a[:, :, 2, 3] * turned_b[:, :, 4, 4]).sum()
    torch.testing.assert_close(first, second)
    assert (first - (turned_a[:, :, 0, 0] * turned_b[:, :, 2, 2]).sum()).abs() > 1e-6


def test_prefix_tokens_are_not_rotated():
    v = torch.randn(1, 2, 8, 8)
    out = apply_rope(v, (2, 3))
    assert torch.equal(out[:, :, :2], v[:, :, :2])
    torch.testing.assert_close(out[:, :, 2:], apply_rope(v[:, :, 2:], (2, 3)))


def test_gradient_and_inplace():
    v = torch.randn(1, 2, 7, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: apply_rope(x, (2, 3)), v)
    expected = apply_rope(v, (2, 3)).detach()
    with torch.no_grad():
        out = apply_rope(v, (2, 3), inplace=True)
    assert out is v
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_precision_rotates_in_fp32(dtype):
    v = torch.randn(1, 2, 4096, 8).to(dtype)
    out = apply_rope(v, (64, 64))
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), apply_rope(v.float(), (64, 64)),
                               rtol=torch.finfo(dtype).eps, atol=1e-7)


def test_compiled_equals_eager():
    v = torch.randn(2, 3, 7, 8)
    compiled = torch.compile(apply_rope, fullgraph=True, backend='aot_eager')
    torch.testing.assert_close(compiled(v, (2, 3)), apply_rope(v, (2, 3)))


def test_errors():
    with pytest.raises(ValueError, match='divisible by 4'):
        apply_rope(torch.randn(1, 1, 4, 6), (2, 2))
    with pytest.raises(ValueError, match='9 tokens, got 4'):
        apply_rope(torch.randn(1, 1, 4, 8), (3, 3))
    with pytest.raises(ValueError, match="'spiral'"):
        apply_rope(torch.randn(1, 1, 4, 8), (2, 2), mode='spiral')
