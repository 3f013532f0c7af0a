"""TimmViT against timm's own models, and its contract as a backbone."""

import inspect
import re

import pytest
import timm
import torch
from torch import nn

from mmext.analysis.flop_counter import count_flops
from mmext.layers.biased_attention import BiasedAttention
from mmext.models import BiasPrunedViT
from mmext.models import TimmViT as Backbone
from mmext.registry import MODELS

SMALL = dict(embed_dim=48, depth=3, num_heads=4)
P16 = [(64, 64), (96, 96), (48, 80)]
P14 = [(56, 56), (84, 84), (42, 70)]
FAMILIES = {  # timm's name, options, sizes: the one it is built for, and two others
    'vit': ('vit_tiny_patch16_224', SMALL, P16),
    'deit distilled': ('deit_tiny_distilled_patch16_224', SMALL, P16),
    'deit3': ('deit3_small_patch16_224', SMALL, P16),
    'beit': ('beit_base_patch16_224', SMALL, P16),
    'beitv2': ('beitv2_base_patch16_224', SMALL, P16),
    'eva02': ('eva02_tiny_patch14_224', SMALL, P14),
    'dinov2': ('vit_small_patch14_dinov2', SMALL, P14),
    'dinov2 registers': ('vit_small_patch14_reg4_dinov2', SMALL, P14),
    'dinov3': ('vit_small_patch16_dinov3', SMALL, P16),
    'clip': ('vit_base_patch16_clip_224', SMALL, P16),
    'siglip': ('vit_base_patch16_siglip_224', SMALL, P16),
    'samvit': ('samvit_base_patch16', dict(SMALL, window_size=3, global_attn_indexes=(1, 2)), P16),
    'flexivit': ('flexivit_small', SMALL, P16),
    'qk norm': ('vit_tiny_patch16_224', dict(SMALL, qk_norm=True, init_values=.5), P16),
    'hybrid': ('vit_tiny_r_s16_p8_224', dict(SMALL, patch_size=2), [(32, 32), (64, 64), (24, 40)]),
    'parallel': ('vit_small_patch16_36x1_224', SMALL, P16),
}
FIXED = {'beit', 'beitv2'}  # position tables of one size


OWN = set(inspect.signature(Backbone.__init__).parameters)


def TimmViT(name, **options):
    """The backbone; what is not its own goes to timm's model."""
    own = {key: options.pop(key) for key in list(options) if key in OWN}
    return Backbone(name, model_args=options, **own)


def spec(key):
    name, options, sizes = FAMILIES[key]
    if not timm.is_model(name):
        pytest.skip(f'timm {timm.__version__} has no {name}')
    return name, dict(options), sizes


def shaken(model):
    """Zero or tiny start values would hide what is compared."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if 'key_bias' not in name:
                parameter.add_(.05 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def ours_and_timms(key, size=None, **kwargs):
    name, options, sizes = spec(key)
    img_size = size if key in FIXED and size else sizes[0]
    ours = TimmViT(name, img_size=img_size, bias_init='zeros', **options, **kwargs)
    try:
        theirs = timm.create_model(
            name, img_size=img_size, num_classes=0, dynamic_img_size=True, **options)
    except TypeError:
        theirs = timm.create_model(name, img_size=img_size, num_classes=0, **options)
    shaken(theirs)
    result = ours.vit.load_state_dict(theirs.state_dict(), strict=False)
    assert all('key_bias' in key for key in result.missing_keys)
    return ours.eval(), theirs


@pytest.mark.parametrize('which', [0, 1, 2], ids=['native', 'larger', 'not square'])
@pytest.mark.parametrize('key', FAMILIES)
@torch.no_grad()
def test_zero_bias_equals_timm(key, which):
    size = spec(key)[2][which]
    ours, theirs = ours_and_timms(key, size, out_indices=(0, -1))
    x = torch.randn(2, 3, *size)
    want = theirs.forward_intermediates(x, indices=[0, 2], intermediates_only=True)
    got = ours(x)
    assert len(got) == 2 and all(y.is_contiguous() for y in got)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize('key', FAMILIES)
def test_pruning_changes_the_output_gathers_and_trains(key):
    size = spec(key)[2][0]
    ours, _ = ours_and_timms(key, size)
    layers = ours.pruned_layers()
    assert len(layers) == (2 if key == 'samvit' else 3)
    for layer in layers:
        nn.init.normal_(layer.key_bias.weight, std=.2)
    ours.set_gather('after')
    x = torch.randn(1, 3, *size)
    num_tokens = ours.num_prefix_tokens + (size[0] // ours.patch_size) * (
        size[1] // ours.patch_size)
    with torch.no_grad():
        dense = ours(x)[0]
        ours.set_keep_ratio(.5)
        assert (ours(x)[0] - dense).abs().max() > 1e-3
        pruned = count_flops(ours, x).total
        ours.set_keep_ratio(None)
        saved = count_flops(ours, x).total - pruned
        # attention over k columns costs 2 N k d multiply-adds, twice as many FLOPs
        want = len(layers) * 4 * num_tokens * (num_tokens - num_tokens // 2) * 48
        assert saved == want, (saved, want)
    ours.train().set_keep_ratio(.5)
    ours(x)[0].square().mean().backward()
    assert all(p.grad is not None for p in ours.parameters() if p.requires_grad)
    assert all(layer.key_bias.weight.grad.abs().sum() > 0 for layer in layers)
    with torch.no_grad():
        masked = ours.eval()(x)[0]
        for layer in layers:
            layer.configure(val_mode='mask')
        torch.testing.assert_close(ours(x)[0], masked, atol=1e-5, rtol=1e-4)


def test_windows_stay_dense():
    ours, _ = ours_and_timms('samvit')
    ours.set_keep_ratio((.8, .2))
    rules = [getattr(block.attn, 'rule_val', None) for block in ours.blocks]
    assert rules[0] is None and [rule.ratio for rule in rules[1:]] == pytest.approx([.5, .2])


@torch.no_grad()
def test_any_size_is_padded_and_padding_can_be_kept_out():
    ours, _ = ours_and_timms('vit', use_valid_mask=True)
    ours.set_keep_ratio(.5)
    nn.init.normal_(ours.pruned_layers()[0].key_bias.weight, std=.2)
    assert ours(torch.randn(1, 3, 50, 70))[0].shape == (1, 48, 4, 5)
    x, mask = torch.randn(1, 3, 64, 64), torch.ones(1, 1, 64, 64)
    mask[..., 32:] = 0
    other = torch.where(mask > 0, x, 7.)
    a, b = (ours(torch.cat([y, mask], 1))[0][..., :2] for y in (x, other))
    torch.testing.assert_close(a, b)


@pytest.mark.parametrize('out_type, shape', [
    ('featmap', (2, 48, 4, 4)), ('cls_token', (2, 48)), ('avg_featmap', (2, 48)),
    ('raw', (2, 21, 48))])
def test_output_types(out_type, shape):
    ours = TimmViT('vit_small_patch14_reg4_dinov2', patch_size=16, img_size=64, out_type=out_type,
                   **SMALL).eval()
    assert ours.patch_size == 16
    x = torch.randn(2, 3, 64, 64)
    (out,) = ours(x)
    assert out.shape == shape
    tokens = ours.vit.forward_features(x) if out_type != 'featmap' else None
    if out_type == 'raw':
        torch.testing.assert_close(out, tokens)
    if out_type == 'cls_token':
        torch.testing.assert_close(out, tokens[:, 0])
    if out_type == 'avg_featmap':
        torch.testing.assert_close(out, tokens[:, 5:].mean(1))


def test_checkpointing_and_order_of_outputs():
    torch.manual_seed(0)
    plain = TimmViT('vit_tiny_patch16_224', img_size=64, out_indices=(2, 0), **SMALL).train()
    saving = TimmViT('vit_tiny_patch16_224', img_size=64, out_indices=(2, 0), with_cp=True,
                     **SMALL).train()
    saving.load_state_dict(plain.state_dict())
    x, grads = torch.randn(1, 3, 64, 64), []
    for model in (plain, saving):
        a, b = model(x)
        assert (a - b).abs().max() > 1e-3
        (a.square().mean() + b.sum()).backward()
        grads.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(*grads)
    last = TimmViT('vit_tiny_patch16_224', img_size=64, out_indices=2, **SMALL)
    last.load_state_dict(plain.state_dict())
    torch.testing.assert_close(plain.eval()(x)[0], last.eval()(x)[0])


def test_later_blocks_do_not_exist_and_nothing_is_unused():
    model = TimmViT('vit_tiny_patch16_224', img_size=64, out_indices=1, **SMALL).train()
    assert len(model.blocks) == 2
    model(torch.randn(1, 3, 64, 64))[0].sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize('stages, frozen_blocks', [(-1, 0), (0, 0), (2, 2), (3, 3)])
def test_freezing(stages, frozen_blocks):
    model = TimmViT('vit_tiny_patch16_224', img_size=64, frozen_stages=stages,
                    out_type='avg_featmap', **SMALL).train()
    for i, block in enumerate(model.blocks):
        assert all(p.requires_grad == (i >= frozen_blocks) for p in block.parameters())
        assert block.training == (i >= frozen_blocks)
    assert model.vit.pos_embed.requires_grad == (stages < 0)
    assert model.vit.pos_drop.training == (stages < 0)
    assert model.vit.norm.weight.requires_grad == (stages < 3)


@pytest.mark.parametrize('key', ['vit', 'beit', 'eva02', 'samvit', 'dinov2 registers'])
def test_layer_depth_and_decay_are_timms(key):
    from timm.optim import param_groups_layer_decay
    ours, _ = ours_and_timms(key)
    groups = param_groups_layer_decay(
        ours.vit, weight_decay=.1, layer_decay=.5,
        no_weight_decay_list=ours.vit.no_weight_decay())
    names = {id(p): name for name, p in ours.named_parameters()}
    scale = {names[id(p)]: group['lr_scale'] for group in groups for p in group['params']}
    depth = {name: ours.get_layer_depth(name) for name in scale}
    assert {found for _, found in depth.values()} == {5}
    top = max(found for found, _ in depth.values())
    for name, (found, _) in depth.items():
        assert scale[name] == pytest.approx(.5 ** (top - found)), name
    assert ours.get_layer_depth('head.weight', 'backbone.') == (4, 5)


def test_checkpoints(tmp_path, capsys):
    """timm's own file with another patch size and grid; an own run; another family; nothing."""
    torch.manual_seed(0)
    source = shaken(timm.create_model('vit_small_patch14_dinov2', img_size=56, **SMALL))
    torch.save(source.state_dict(), tmp_path / 'timm.pth')
    ours = TimmViT('vit_small_patch14_dinov2', patch_size=16, img_size=(64, 96), **SMALL)
    report = ours.load_pretrained(str(tmp_path / 'timm.pth'))
    assert all('key_bias' in name for name in report.new) and len(report.new) == 3
    same = timm.create_model('vit_small_patch14_dinov2', patch_size=16, img_size=(64, 96),
                             num_classes=0, **SMALL)
    from timm.models.vision_transformer import checkpoint_filter_fn
    want = checkpoint_filter_fn(torch.load(tmp_path / 'timm.pth'), same)
    assert torch.equal(ours.vit.pos_embed, want['pos_embed'])
    assert torch.equal(ours.vit.patch_embed.proj.weight, want['patch_embed.proj.weight'])

    run = {f'backbone.{name}': value for name, value in ours.state_dict().items()}
    torch.save(dict(state_dict={**run, 'head.fc.weight': torch.ones(2, 48)}), tmp_path / 'run.pth')
    again = TimmViT('vit_small_patch14_dinov2', patch_size=16, img_size=(64, 96), **SMALL)
    assert not again.load_pretrained(str(tmp_path / 'run.pth')).new
    for a, b in zip(again.parameters(), ours.parameters(), strict=True):
        assert torch.equal(a, b)

    for name, state in (('resnet', timm.create_model('resnet18').state_dict()),
                        ('eva', timm.create_model('eva02_tiny_patch14_224').state_dict())):
        torch.save(state, tmp_path / f'{name}.pth')
        before = {key: value.clone() for key, value in again.state_dict().items()}
        with pytest.raises(ValueError, match=re.escape(f'{name}.pth')):
            again.load_pretrained(str(tmp_path / f'{name}.pth'))
        assert all(torch.equal(value, before[key]) for key, value in again.state_dict().items())


@pytest.mark.parametrize('name, options, message', [
    ('vit_smal_patch16_224', {}, 'near are .*vit_small_patch16_224'),
    ('swin_tiny_patch4_window7_224', {}, 'no plain vision transformer|cannot be pruned'),
    ('resnet18', {}, 'no plain vision transformer'),
    ('vit_tiny_patch16_224', dict(keep_ratio=2), 'keep_ratio=2'),
    ('vit_tiny_patch16_224', dict(bias_init='ones'), 'bias_init'),
    ('vit_base_patch16_siglip_224', dict(SMALL, out_type='cls_token'), 'no class token'),
    ('beit_base_patch16_224', dict(SMALL, use_valid_mask=True), 'use_valid_mask=False'),
    ('vit_tiny_patch16_224', dict(nonsense=1), 'nonsense'),
    ('vit_tiny_patch16_224', dict(key_bias=False, keep_ratio=.5), 'key_bias=True')])
def test_bad_options(name, options, message):
    with pytest.raises(ValueError, match=message):
        TimmViT(name, **options)


def test_a_fixed_grid_is_refused_by_name():
    model = TimmViT('beit_base_patch16_224', img_size=64, **SMALL)
    with pytest.raises(ValueError, match='set img_size'):
        model(torch.randn(1, 3, 96, 96))


@torch.no_grad()
def test_same_features_as_bias_pruned_vit(shared_dir):
    """The given ViT-S through both backbones, dense and pruned."""
    path = str(shared_dir / 'weights' / 'vit_small_patch16_224_pretrained.safetensors')
    ours = MODELS.build(dict(type='mmext.TimmViT', model_name='deit_small_patch16_224',
                             img_size=224)).eval()
    other = BiasPrunedViT('deit-small', out_type='featmap').eval()
    ours.load_pretrained(path)
    other.load_pretrained(path)
    for mine, its in zip(ours.pruned_layers(), other.blocks, strict=True):
        its.attn.key_bias.weight.copy_(mine.key_bias.weight)
    x = torch.randn(1, 3, 224, 224)
    for ratio in (None, (.9, .1)):
        ours.set_keep_ratio(ratio)
        other.set_keep_ratio(ratio)
        torch.testing.assert_close(ours(x)[0], other(x)[0], atol=1e-4, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize('key', ['vit', 'samvit', 'beit', 'eva02'])
def test_intermediates(key):
    ours, _ = ours_and_timms(key, keep_ratio=.5)
    x = torch.randn(1, 3, *spec(key)[2][0])
    found = ours.forward_intermediates(x, layers=(1, 2))
    tokens = ours.num_prefix_tokens + 16
    for tensors in found.values():
        assert tensors['attn'].shape == (1, 4, tokens, tokens)
        assert (tensors['kept'].sum(-1) == tokens // 2).all()
        assert tensors['x_in'].shape == tensors['x_out'].shape == (1, tokens, 48)
    assert isinstance(ours.blocks[2].attn, BiasedAttention)
    torch.testing.assert_close(found[1]['x_out'], found[2]['x_in'])


def test_plain_baseline_is_timms_model():
    ours = TimmViT('vit_tiny_patch16_224', img_size=64, key_bias=False, **SMALL)
    assert not ours.pruned_layers()
    assert not any('key_bias' in name for name, _ in ours.named_parameters())
    ours.set_keep_ratio(None)
