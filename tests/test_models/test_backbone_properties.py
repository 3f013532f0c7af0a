"""Both backbones and the pyramid over image sizes, ratios and dtypes, on drawn examples."""

import copy
import math

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from mmext.models import DMST, BiasPrunedViT, SimpleFeaturePyramid
from mmext.ops import num_kept

ARCH = dict(embed_dim=16, depth=2, num_heads=2)
sides = st.integers(1, 70)
seeds = st.integers(0, 2**20)
ratios = st.one_of(st.none(), st.floats(0.01, 1), st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)))


def holds_for(*examples, count=25):
    return lambda test: settings(
        max_examples=count, deadline=None, derandomize=True,
        suppress_health_check=[HealthCheck.too_slow])(given(*examples)(test))


def vit(seed, **options):
    torch.manual_seed(seed)
    return rounded(BiasPrunedViT(ARCH, patch_size=8, img_size=(24, 32), out_type='featmap',
                                 out_indices=(0, 1), **options))


def dmst(seed, attn='dmsa'):
    torch.manual_seed(seed)
    return rounded(DMST(ARCH, patch_size=8, attn=attn, out_type='featmap', out_indices=(0, 1)))


def rounded(model):
    """Weights that the half formats hold exactly."""
    for parameter in model.parameters():
        noise = torch.randn_like(parameter) * (0.3 if parameter.ndim > 1 else 0.1)
        parameter.data.copy_((parameter.data + noise).bfloat16().half())
    return model.eval()


def images(height, width, seed, channels=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, channels, height, width, generator=generator).bfloat16().float()


@holds_for(sides, sides, ratios, st.booleans(), seeds)
@torch.no_grad()
def test_vit_of_any_size_and_ratio(height, width, ratio, with_cls, seed):
    """Maps of ceil(side / patch), NCHW; the number of columns follows the live ratio."""
    model, x = vit(seed, with_cls_token=with_cls), images(height, width, seed)
    model.set_keep_ratio(ratio)
    grid = (math.ceil(height / 8), math.ceil(width / 8))
    outs = model(x)
    assert len(outs) == 2
    for out in outs:
        assert out.shape == (2, 16, *grid) and out.is_contiguous() and out.isfinite().all()
    length = grid[0] * grid[1] + int(with_cls)
    pair = ratio if isinstance(ratio, tuple) else (ratio, ratio)
    for layer, part in zip(model.forward_intermediates(x).values(), pair, strict=True):
        want = length if part is None else num_kept(part, length)
        assert (layer['kept'].sum(-1) == want).all()


@holds_for(sides, sides, st.sampled_from(['dmsa', 'tssa', 'mssa', 'mhsa', 'gated']), seeds)
@torch.no_grad()
def test_dmst_of_any_size(height, width, attn, seed):
    grid = (math.ceil(height / 8), math.ceil(width / 8))
    outs = dmst(seed, attn)(images(height, width, seed))
    assert len(outs) == 2
    for out in outs:
        assert out.shape == (2, 16, *grid) and out.is_contiguous() and out.isfinite().all()


@holds_for(sides, sides, st.sampled_from(['vit', 'dmsa', 'tssa']),
           st.sampled_from([torch.bfloat16, torch.float16]), seeds)
@torch.no_grad()
def test_half_precision_is_close_to_fp64(height, width, kind, dtype, seed):
    """The whole backbone cast, as for inference; without pruning, whose choice may tip at a tie."""
    model = vit(seed) if kind == 'vit' else dmst(seed, kind)
    x = images(height, width, seed)
    for got, want in zip(copy.deepcopy(model).to(dtype)(x.to(dtype)), model.double()(x.double()),
                         strict=True):
        assert got.dtype == dtype and got.isfinite().all()
        assert (got.double() - want).norm() <= 32 * torch.finfo(dtype).eps * (1 + want.norm())


@holds_for(sides, sides, st.integers(0, 40), st.integers(0, 40),
           st.sampled_from(['vit', 'dmsa', 'tssa']), seeds)
@torch.no_grad()
def test_marked_padding_changes_nothing(height, width, below, right, kind, seed):
    """An image with a mask of ones against the same one on a canvas, padding marked."""
    model = (vit(seed, use_valid_mask=True) if kind == 'vit' else dmst(seed, kind)).double()
    if kind == 'vit':
        model.pos_embed.zero_()  # learned positions are stretched over the canvas
    x = images(height, width, seed, channels=4).double()
    x[:, 3] = 1
    padded = (-height % 8 + below, -width % 8 + right)
    canvas = torch.nn.functional.pad(x, (0, padded[1], 0, padded[0]))
    rows, cols = math.ceil(height / 8), math.ceil(width / 8)
    for alone, within in zip(model(x), model(canvas), strict=True):
        assert_close(within[..., :rows, :cols], alone, rtol=1e-6, atol=1e-6)


@holds_for(st.integers(1, 20), st.integers(1, 20), st.sampled_from([torch.float32, torch.bfloat16]),
           st.booleans(), seeds)
@torch.no_grad()
def test_pyramid_of_any_size(height, width, dtype, channels_last, seed):
    torch.manual_seed(seed)
    neck, x = SimpleFeaturePyramid(8, 4).to(dtype), torch.randn(1, 8, height, width, dtype=dtype)
    if channels_last:
        neck = neck.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    for out, scale in zip(neck(x), (4, 2, 1, 1 / 2, 1 / 4), strict=True):
        assert out.shape[2:] == (math.ceil(height * scale), math.ceil(width * scale))
        assert out.is_contiguous() and out.dtype == dtype and out.isfinite().all()
