"""timm's registry: the same questions put to our models as to timm's own."""

import subprocess
import sys

import pytest
import timm
import torch
from timm.layers import resample_abs_pos_embed
from timm.optim import create_optimizer_v2, param_groups_layer_decay, param_groups_weight_decay

import mmext.timm_models as ours
from mmext.models import DMST, BiasPrunedViT

NAMES = sorted(name for name in timm.list_models(module='timm_models'))
SMALL = ['deit_tiny_bias_patch16_224', 'dmst_tiny_patch16_224', 'tost_tiny_patch16_224']


def test_names():
    want = {f'deit_{size}_bias_patch16_224' for size in ('tiny', 'small', 'base')}
    want |= {'vit_large_bias_patch16_224'}
    want |= {f'{family}_{size}_patch16_224' for family in ('dmst', 'tost')
             for size in ('tiny', 'small', 'medium')}
    assert set(NAMES) == want
    code = ('import sys, mmext.timm_models, timm; timm.create_model("deit_tiny_bias_patch16_224"); '
            'assert not {"mmdet", "mmpretrain"} & set(sys.modules)')
    subprocess.run([sys.executable, '-c', code], check=True)


@pytest.mark.parametrize('name, millions', [
    ('deit_tiny_bias_patch16_224', 5.717416 + 0.006912),
    ('deit_small_bias_patch16_224', 22.050664 + 0.027648),
    ('deit_base_bias_patch16_224', 86.567656 + 0.110592),
    ('vit_large_bias_patch16_224', 304.326632 + 0.393216),
    ('tost_tiny_patch16_224', 5.769), ('dmst_tiny_patch16_224', 5.778),
    ('tost_small_patch16_224', 22.590), ('dmst_small_patch16_224', 22.627)])
def test_published_numbers_of_parameters(name, millions):
    with torch.device('meta'):
        model = timm.create_model(name)
    count = sum(p.numel() for p in model.parameters()) / 1e6
    assert count == pytest.approx(millions, abs=1e-6 if 'bias' in name else 6e-4)


@pytest.mark.parametrize('name', SMALL)
@torch.no_grad()
def test_timm_interface(name):
    model = timm.create_model(name, num_classes=11).eval()
    x = torch.randn(2, 3, 224, 224)
    tokens = model.forward_features(x)
    assert tokens.shape == (2, 197, 192)
    scores = model(x)
    torch.testing.assert_close(model.forward_head(tokens), scores)
    pooled = model.forward_head(tokens, pre_logits=True)
    assert scores.shape == (2, 11) and pooled.shape == (2, model.num_features)
    torch.testing.assert_close(model.get_classifier()(pooled), scores)
    model.reset_classifier(5)
    assert model(x).shape == (2, 5) and model.num_classes == 5
    model.reset_classifier(0)
    torch.testing.assert_close(model(x), pooled)
    model.reset_classifier(0, 'avg')
    assert (model(x) - pooled).abs().max() > 1e-3
    cfg = timm.data.resolve_data_config(model=model)
    assert cfg['input_size'] == (3, 224, 224) and cfg['interpolation'] == 'bicubic'
    assert dict(model.named_modules())[model.pretrained_cfg['first_conv']].in_channels == 3


@pytest.mark.parametrize('name', SMALL)
@torch.no_grad()
def test_features_only(name):
    torch.manual_seed(0)
    whole = timm.create_model(name).eval()
    model = timm.create_model(name, features_only=True, out_indices=(2, 5, 8)).eval()
    missing, unexpected = model.load_state_dict(
        {f'model.{key}': value for key, value in whole.state_dict().items()}, strict=False)
    assert not missing and any('blocks.9' in key for key in unexpected)
    x = torch.randn(2, 3, 224, 224)
    maps = model(x)
    assert [tuple(y.shape) for y in maps] == [(2, 192, 14, 14)] * 3
    assert model.feature_info.channels() == [192] * 3
    assert model.feature_info.reduction() == [16] * 3
    final, want = whole.forward_intermediates(x, indices=[2, 5, 8], output_fmt='NLC')
    for y, tokens in zip(maps, want, strict=True):
        torch.testing.assert_close(y.flatten(2).transpose(1, 2), tokens)
    torch.testing.assert_close(final, whole.forward_features(x))
    assert len(whole.forward_intermediates(x, indices=3, intermediates_only=True)) == 3


def test_sizes():
    x = torch.randn(1, 3, 96, 160)
    vit = timm.create_model('deit_tiny_bias_patch16_224', img_size=(96, 160), num_classes=3)
    assert vit(x).shape == (1, 3)
    assert timm.create_model('dmst_tiny_patch16_224', img_size=96, num_classes=3)(x).shape == (1, 3)
    with pytest.raises(ValueError, match='in_chans=1'):
        timm.create_model('dmst_tiny_patch16_224', in_chans=1)
    with pytest.raises(ValueError, match='global_pool'):
        timm.create_model('tost_tiny_patch16_224', global_pool='map')


@torch.no_grad()
def test_bias_vit_equals_the_backbone_and_timms_deit():
    """Same weights: our mmengine backbone when pruned, timm's own DeiT when dense."""
    torch.manual_seed(0)
    model = timm.create_model('deit_tiny_bias_patch16_224', keep_ratio=(0.9, 0.1)).eval()
    for parameter in model.parameters():
        parameter.add_(0.02 * torch.randn_like(parameter))
    x = torch.randn(2, 3, 224, 224)
    state = model.state_dict()
    backbone = BiasPrunedViT('deit-tiny', keep_ratio=(0.9, 0.1)).eval()
    backbone.load_state_dict({k: v for k, v in state.items() if not k.startswith('head.')})
    torch.testing.assert_close(
        model.forward_head(model.forward_features(x), pre_logits=True), backbone(x)[0],
        atol=1e-4, rtol=1e-4)

    plain = timm.create_model('deit_tiny_patch16_224').eval()
    plain.load_state_dict({k: v for k, v in state.items() if 'key_bias' not in k})
    for layer in model.blocks:
        layer.attn.key_bias.weight.zero_()
    model.set_keep_ratio(None)
    torch.testing.assert_close(model(x), plain(x), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_dmst_equals_the_backbone():
    torch.manual_seed(0)
    model = timm.create_model('dmst_tiny_patch16_224').eval()
    backbone = DMST('tiny', out_type='cls_token').eval()
    backbone.load_state_dict({k: v for k, v in model.state_dict().items()
                          if not k.startswith('head.')})
    x = torch.randn(2, 3, 224, 224)
    torch.testing.assert_close(model(x), model.head(backbone(x)[0]))


def test_pretrained_files_without_bias_load(tmp_path):
    """An official-layout file, its positions of another grid; the bias stays the model's own."""
    source = timm.create_model('deit_tiny_patch16_224', img_size=112)
    path = tmp_path / 'deit.pth'
    torch.save(dict(model=source.state_dict()), path)
    model = timm.create_model('deit_tiny_bias_patch16_224', pretrained=True,
                              pretrained_cfg_overlay=dict(file=str(path)))
    assert torch.equal(model.blocks[3].attn.qkv.weight, source.blocks[3].attn.qkv.weight)
    assert torch.equal(model.head.weight, source.head.weight)
    want = resample_abs_pos_embed(source.pos_embed, [14, 14], num_prefix_tokens=1)
    torch.testing.assert_close(model.pos_embed, want)
    assert model.blocks[3].attn.key_bias.weight.std().item() == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize('name', SMALL)
def test_optimizer_groups(name):
    """timm's own helpers: layer decay over all parameters, none of ours left out or decayed."""
    model = timm.create_model(name)
    every = {id(p) for p in model.parameters()}
    groups = param_groups_layer_decay(
        model, 0.05, no_weight_decay_list=model.no_weight_decay(), layer_decay=0.5)
    assert {id(p) for group in groups for p in group['params']} == every
    scale = {id(p): group['lr_scale'] for group in groups for p in group['params']}
    first, last = model.blocks[0].attn.qkv.weight, model.blocks[11].attn.qkv.weight
    assert scale[id(last)] / scale[id(first)] == pytest.approx(2.0**11)
    assert scale[id(model.head.weight)] == 1
    assert scale[id(model.cls_token)] <= scale[id(first)] / 2
    free = param_groups_weight_decay(
        model, 0.05, no_weight_decay_list=model.no_weight_decay())[0]
    assert free['weight_decay'] == 0
    assert id(model.cls_token) in {id(p) for p in free['params']}
    if 'bias' not in name:
        assert id(model.blocks[0].attn.temp) in {id(p) for p in free['params']}
    optimizer = create_optimizer_v2(model, 'adamw', lr=1e-3, weight_decay=0.05)
    model.train()
    model.set_grad_checkpointing(True)
    model(torch.randn(2, 3, 224, 224)).square().mean().backward()
    assert all(p.grad is not None for p in model.parameters())
    optimizer.step()


def test_registration_is_repeatable():
    assert timm.create_model('tost_tiny_patch16_224', num_classes=0).num_classes == 0
    assert ours.default_cfgs['dmst_tiny_patch16_224'].default.url == ''
    assert not timm.is_model_pretrained('dmst_tiny_patch16_224')
