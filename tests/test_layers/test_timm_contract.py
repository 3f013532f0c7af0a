"""Every layer is an ``attn_layer`` of timm's VisionTransformer, whichever timm is installed."""

import inspect

import pytest
import torch
from timm.layers import Attention
from timm.models.vision_transformer import VisionTransformer

from mmext.layers import DMSA, MSSA, TSSA, BiasedAttention, GatedMHSA

SMALL = dict(img_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=4, num_classes=3)
LAYERS = [BiasedAttention, DMSA, TSSA, MSSA, GatedMHSA]


@pytest.mark.parametrize('layer', LAYERS)
def test_builds_and_trains_inside_timm(layer):
    torch.manual_seed(0)
    model = VisionTransformer(**SMALL, attn_layer=layer)
    assert all(type(block.attn) is layer for block in model.blocks)
    x = torch.randn(2, 3, 32, 32)
    out = model(x)
    assert out.shape == (2, 3)
    out.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all()
               for block in model.blocks for p in block.attn.parameters())
    features = model.forward_intermediates(x, indices=1, intermediates_only=True)
    assert features[0].shape == (2, 48, 4, 4)


def test_zero_bias_in_timms_model_is_timms_model():
    torch.manual_seed(0)
    plain = VisionTransformer(**SMALL, qk_norm=True, init_values=0.1)
    ours = VisionTransformer(**SMALL, qk_norm=True, init_values=0.1, attn_layer=BiasedAttention)
    result = ours.load_state_dict(plain.state_dict(), strict=False)
    assert not result.unexpected_keys and all('key_bias' in key for key in result.missing_keys)
    for block in ours.blocks:
        torch.nn.init.zeros_(block.attn.key_bias.weight)
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(ours(x), plain(x))


@pytest.mark.parametrize('layer', LAYERS)
def test_constructor_takes_what_timm_passes(layer):
    """All that timm's Attention knows and its blocks hand over; device and dtype are honored."""
    passed = {'dim', 'num_heads', 'qkv_bias', 'qk_norm', 'scale_norm', 'proj_bias', 'attn_drop',
              'proj_drop', 'norm_layer', 'device', 'dtype'}
    known = set(inspect.signature(Attention.__init__).parameters)
    assert passed & known <= set(inspect.signature(layer.__init__).parameters)
    made = layer(48, 4, device='meta', dtype=torch.bfloat16)
    assert {(p.device.type, p.dtype) for p in made.parameters()} == {('meta', torch.bfloat16)}


@pytest.mark.parametrize('layer', LAYERS)
def test_what_a_layer_cannot_do_is_refused_by_name(layer):
    attn, x = layer(48, 4), torch.randn(1, 6, 48)
    torch.testing.assert_close(attn(x, attn_mask=None, is_causal=False), attn(x))
    with pytest.raises(ValueError, match='is_causal'):
        attn(x, is_causal=True)
    mask = torch.ones(6, 6, dtype=torch.bool)
    if layer is BiasedAttention:
        torch.testing.assert_close(attn(x, attn_mask=mask), attn(x))
        return
    with pytest.raises(ValueError, match='attn_mask'):
        attn(x, attn_mask=mask)
    with pytest.raises(ValueError, match='scale_norm'):
        layer(48, 4, scale_norm=True)


@pytest.mark.parametrize('form', ['bool', 'additive'])
def test_attention_mask_equals_timm(form):
    torch.manual_seed(0)
    plain = Attention(48, 4, qkv_bias=True)
    ours = BiasedAttention(48, 4, qkv_bias=True, bias_init='zeros')
    ours.load_state_dict(plain.state_dict(), strict=False)
    x, mask = torch.randn(2, 9, 48), torch.rand(2, 1, 9, 9) > .3
    mask |= torch.eye(9, dtype=torch.bool)
    if form == 'additive':
        mask = torch.randn(2, 4, 9, 9)
    torch.testing.assert_close(ours(x, attn_mask=mask), plain(x, attn_mask=mask))
