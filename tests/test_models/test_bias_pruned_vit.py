"""BiasPrunedViT: timm's DeiT when nothing is pruned, and everything the options promise."""

import copy
from functools import partial

import pytest
import timm
import torch
from timm.models.vision_transformer_sam import Block as SamBlock

from mmext.models import BiasPrunedViT
from mmext.models.backbones.bias_pruned_vit import ARCHS
from mmext.ops import resize_position_grid
from mmext.registry import MODELS

PUBLISHED = {  # parameters of the classifier with 1,000 classes, and what the key bias adds
    'deit-tiny': (192, 5_717_416, 6_912), 'deit-small': (384, 22_050_664, 27_648),
    'deit-base': (768, 86_567_656, 110_592), 'vit-large': (1024, 304_326_632, 393_216)}


def tiny(**kwargs):
    torch.manual_seed(0)
    model = BiasPrunedViT(**{'arch': 'tiny-test', 'img_size': 64, **kwargs})
    for name, parameter in model.blocks.named_parameters():
        if parameter.dim() == 2:  # far from the small initial values, so that differences show
            torch.nn.init.normal_(parameter, std=0.5 if 'key_bias' in name else 0.2)
    return model


def images(height=64, width=64, channels=3, batch=2):
    return torch.randn(batch, channels, height, width, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize('pool', ['token', 'avg'])
def test_logits_equal_timm(pool):
    torch.manual_seed(0)
    reference = timm.create_model('deit_tiny_patch16_224', depth=3, global_pool=pool).eval()
    torch.nn.init.normal_(reference.cls_token)
    options = {'token': {}, 'avg': dict(out_type='avg_featmap', fc_norm=True)}[pool]
    ours = BiasPrunedViT(dict(embed_dim=192, depth=3, num_heads=3), bias_init='zeros',
                         **options).eval()
    state = {k: v for k, v in reference.state_dict().items() if not k.startswith('head.')}
    result = ours.load_state_dict(state, strict=False)
    assert all('key_bias' in key for key in result.missing_keys) and not result.unexpected_keys
    x = images(224, 224)
    with torch.no_grad():
        torch.testing.assert_close(
            reference.head(ours(x)[0]), reference(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize('arch', PUBLISHED)
def test_parameter_counts(arch):
    dim, published, extra = PUBLISHED[arch]
    with torch.device('meta'):
        options = dict(out_type='avg_featmap', fc_norm=True) if arch == 'vit-large' else {}
        counts = [sum(p.numel() for p in BiasPrunedViT(arch, key_bias=bias, **options).parameters())
                  for bias in (False, True)]
    assert counts[0] + dim * 1000 + 1000 == published
    assert counts[1] - counts[0] == extra


def test_every_alias_builds_from_the_registry():
    with torch.device('meta'):
        for names in ARCHS:
            for name in names:
                MODELS.build(dict(type='mmext.BiasPrunedViT', arch=name.replace('-', '_')))


def test_query_key_free_blocks_have_no_query_and_key_weights():
    model = tiny(num_qk_free=1)
    names = [name for name, _ in model.named_parameters() if 'blocks.1.attn' in name]
    assert 'blocks.1.attn.v.weight' in names and not any('qkv' in name for name in names)
    full, free = tiny(), tiny(num_qk_free=2)
    size = [sum(p.numel() for p in m.parameters()) for m in (full, free)]
    assert size[0] - size[1] == 2 * 2 * (32 * 32 + 32)


@pytest.mark.parametrize('size', [(64, 64), (96, 64), (70, 130), (16, 16)])
@pytest.mark.parametrize('options, shape', [
    (dict(out_type='featmap'), 'map'), (dict(out_type='featmap', with_cls_token=False), 'map'),
    (dict(out_type='cls_token'), 'vector'), (dict(out_type='avg_featmap', fc_norm=True), 'vector'),
    (dict(out_type='raw'), 'tokens'), (dict(out_type='featmap', patch_stem='conv'), 'map'),
    (dict(out_type='featmap', tome_r=8, keep_ratio=(0.9, 0.5)), 'map'),
    (dict(out_type='featmap', with_cls_token=False, window_size=3, global_blocks=(1,),
          rel_pos=True, keep_ratio=0.5), 'map')])
def test_outputs(size, options, shape):
    model = tiny(out_indices=(0, -1), **options).eval()
    outs = model(images(*size))
    h, w = -(-size[0] // 16), -(-size[1] // 16)
    prefix = int(options.get('with_cls_token', True))
    want = {'map': (2, 32, h, w), 'vector': (2, 32), 'tokens': (2, prefix + h * w, 32)}[shape]
    assert len(outs) == 2
    for out in outs:
        assert out.shape == want and out.isfinite().all()
        assert shape != 'map' or out.is_contiguous()


@pytest.mark.parametrize('patch', [8, 14, 16])
def test_patch_sizes(patch):
    model = tiny(patch_size=patch, out_type='featmap', img_size=(56, 112)).eval()
    assert model(images(57, 112))[0].shape == (2, 32, -(-57 // patch), 112 // patch)


def test_positions_are_resampled_from_the_stored_grid():
    model = tiny(img_size=(64, 128), out_type='raw')
    assert model.grid == (4, 8)
    tokens, hw, _ = model.embed(images(48, 160))
    patches = model.patch_embed(images(48, 160))
    want = resize_position_grid(model.pos_embed, (4, 8), (3, 10), 1)
    torch.testing.assert_close(tokens[:, 1:], patches + want[:, 1:])
    torch.testing.assert_close(tokens[0, 0], model.cls_token[0, 0] + model.pos_embed[0, 0])
    assert hw == (3, 10)


@pytest.mark.parametrize('options', [dict(keep_ratio=0.3), dict(keep_ratio=(0.9, 0.1)),
                                     dict(keep_ratio=[None, 0.2]), dict(tau=0.5)])
def test_pruned_training_equals_pruned_validation(options):
    model = tiny(drop_path_rate=0.0, **options)
    x = images()
    train, val = model.train()(x)[0], model.eval()(x)[0]
    torch.testing.assert_close(train, val, rtol=1e-4, atol=1e-5)
    model.set_keep_ratio(None)
    assert (model(x)[0] - val).abs().max() > 1e-3


def test_set_keep_ratio_on_a_live_model():
    model, x = tiny().eval(), images()
    outs = [model(x)[0]]
    for value in (0.5, (0.9, 0.1), [0.2, 0.7], 0.1):
        model.set_keep_ratio(value)
        outs.append(model(x)[0])
    for i, a in enumerate(outs):
        for b in outs[i + 1:]:
            assert (a - b).abs().max() > 1e-4
    model.set_keep_ratio(None, train=False)
    torch.testing.assert_close(model(x)[0], outs[0])
    assert (model.train()(x)[0] - outs[0]).abs().max() > 1e-4
    keep = [e['kept'].sum(-1).unique().tolist()
            for e in tiny(keep_ratio=(0.9, 0.1)).forward_intermediates(images()).values()]
    assert keep == [[15], [1]]  # of 17 tokens


def test_intermediates():
    model, x = tiny(keep_ratio=0.5).eval(), images()
    found = model.forward_intermediates(x)
    assert list(found) == [0, 1]
    assert set(found[0]) == {'logits', 'bias', 'attn', 'kept', 'x_in', 'x_out'}
    torch.testing.assert_close(found[0]['x_out'], found[1]['x_in'])
    torch.testing.assert_close(model.norm(found[1]['x_out'])[:, 0], model(x)[0])
    assert list(model.forward_intermediates(x, [-1])) == [1]


@pytest.mark.parametrize('options', [
    dict(), dict(out_type='featmap', with_cls_token=False), dict(out_type='raw'),
    dict(out_type='avg_featmap', fc_norm=True), dict(num_qk_free=2), dict(out_indices=0),
    dict(out_type='featmap', with_cls_token=False, window_size=3, global_blocks=(1,), rel_pos=True),
    dict(tome_r=6, out_type='featmap'), dict(keep_ratio=0.2, train_mode='gather'),
    dict(trainable='attn'), dict(frozen_stages=1)])
@pytest.mark.parametrize('with_cp', [False, True])
def test_every_trainable_parameter_gets_a_gradient(options, with_cp):
    model = tiny(with_cp=with_cp, **options).train()
    sum(out.square().sum() for out in model(images())).backward()
    names = {name for name, _ in model.named_parameters()}
    frozen = set()
    if options.get('trainable') == 'attn':
        frozen = {name for name in names if '.attn.' not in name}
    elif 'frozen_stages' in options:
        frozen = {name for name in names if not name.startswith(('blocks.1.', 'norm.'))}
    elif 'out_indices' in options:  # the block behind the last output
        frozen = {name for name in names if name.startswith('blocks.1.')}
    assert bool(frozen) == bool({'trainable', 'frozen_stages', 'out_indices'} & set(options))
    assert {name for name, p in model.named_parameters() if not p.requires_grad} == frozen
    assert {name for name, p in model.named_parameters() if p.grad is None} == frozen


def test_checkpointing_changes_nothing():
    grads = []
    for with_cp in (False, True):
        model = tiny(with_cp=with_cp, keep_ratio=0.5, tome_r=4, out_type='featmap').train()
        model(images())[0].square().sum().backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


def test_frozen_stages_survive_train():
    model = tiny(frozen_stages=1, drop_rate=0.5)
    assert model.train() is model
    assert not model.blocks[0].training and model.blocks[1].training
    assert not model.pos_embed.requires_grad and not model.blocks[0].norm1.weight.requires_grad
    assert model.blocks[1].norm1.weight.requires_grad
    assert model.eval() is model


def test_padding_marked_by_the_fourth_channel_has_no_effect():
    model = tiny(out_type='featmap', use_valid_mask=True, keep_ratio=0.4, img_size=96).eval()
    x = images(96, 96, channels=4)
    x[:, 3] = 0
    x[:, 3, :60, :96] = 1  # 4 rows of patches, the last of them in part
    noisy = x.clone()
    noisy[:, :3, 64:] = 9
    a, b = model(x)[0][:, :, :4], model(noisy)[0][:, :, :4]
    torch.testing.assert_close(a, b)
    plain = copy.deepcopy(model)
    plain.use_valid_mask = False
    assert (plain(x)[0][:, :, :4] - plain(noisy)[0][:, :, :4]).abs().max() > 1e-3
    torch.testing.assert_close(plain(x)[0], plain(x[:, :3])[0])


def test_average_leaves_padding_out():
    model = tiny(out_type='avg_featmap', use_valid_mask=True, with_cls_token=False, img_size=64)
    x = images(64, 64, channels=4).abs()
    x[:, 3, :, 32:] = 0
    noisy = x.clone()
    noisy[:, :3, :, 32:] = 5
    torch.testing.assert_close(model(x)[0], model(noisy)[0])


def test_windows_equal_segment_anything():
    """SAM's block is detectron2's: windows with padding, relative positions, pre-norm."""
    torch.manual_seed(0)
    model = tiny(with_cls_token=False, out_type='featmap', window_size=3, global_blocks=(),
                 rel_pos=True, key_bias=False, img_size=(64, 80)).eval()
    block = SamBlock(32, 2, use_rel_pos=True, window_size=3, input_size=(4, 5),
                     norm_layer=partial(torch.nn.LayerNorm, eps=1e-6)).eval()
    torch.nn.init.normal_(model.blocks[0].attn.rel_pos_h)
    torch.nn.init.normal_(model.blocks[0].attn.rel_pos_w)
    block.load_state_dict(model.blocks[0].state_dict())
    x = torch.randn(2, 4, 5, 32)
    want = block(x).flatten(1, 2)
    torch.testing.assert_close(model.blocks[0](x.flatten(1, 2), (4, 5)), want)


def test_pruning_happens_in_global_blocks_only():
    model = tiny(with_cls_token=False, out_type='featmap', window_size=2, global_blocks=(1,),
                 keep_ratio=0.5)
    found = model.forward_intermediates(images())
    assert found[0]['kept'].all() and found[1]['kept'].float().mean() == 0.5
    model.set_tau(0.5)
    assert model.forward_intermediates(images())[0]['kept'].all()


def test_token_merging_counts_and_r_scaling():
    model = tiny(tome_r=26, keep_ratio=0.5, out_type='raw', img_size=112)
    found = model.forward_intermediates(images(112, 112))
    r = round(26 * 49 / 196)  # 6 or 7 of 49 patch tokens
    sizes = [found[i]['kept'].shape[-1] for i in (0, 1)]
    assert sizes == [50, 50 - r]
    assert found[1]['kept'].sum(-1).unique().tolist() == [(50 - r) // 2]  # of the current N
    assert model(images(112, 112))[0].shape[1] == 50
    model.set_tome(0)
    assert model.forward_intermediates(images(112, 112))[1]['kept'].shape[-1] == 50


def test_proportional_attention_equals_repeated_tokens():
    """A merged token of size s weighs as s equal tokens would."""
    attn = tiny().blocks[0].attn.eval()
    x = torch.randn(1, 5, 32)
    repeats = torch.tensor([1, 3, 1, 2, 1])
    merged = attn(x, log_size=repeats.float().log()[None])
    full = attn(x.repeat_interleave(repeats, 1))
    torch.testing.assert_close(merged[0], full[0, repeats.cumsum(0) - 1])


@pytest.mark.parametrize('by_size', [False, True])
def test_ranking_by_size(by_size):
    attn = tiny(keep_ratio=0.4, tome_rank_by_size=by_size).blocks[0].attn.eval()
    x, log_size = torch.randn(2, 10, 32), torch.randint(1, 9, (2, 10)).float().log()
    found = attn.forward_intermediates(x, log_size=log_size)[1]
    rank = found['bias'] + (log_size[:, None] if by_size else 0)
    rank[..., 0] = torch.inf  # the class token stays
    want = torch.zeros_like(found['kept']).scatter(-1, rank.topk(4, dim=-1)[1], True)
    assert torch.equal(found['kept'], want)


@pytest.mark.parametrize('r', [0, 100])
def test_class_token_output_with_merging(r):
    model = tiny(tome_r=r).eval()
    assert model(images())[0].shape == (2, 32)


def test_layer_depth_follows_mmpretrain():
    model = tiny()
    depths = {name: model.get_layer_depth('backbone.' + name, 'backbone.')
              for name, _ in model.named_parameters()}
    assert depths['pos_embed'] == depths['cls_token'] == (0, 4)
    assert depths['patch_embed.proj.weight'] == (0, 4)
    assert depths['blocks.1.attn.key_bias.weight'] == (2, 4) and depths['norm.weight'] == (3, 4)
    assert model.get_layer_depth('head.fc.weight', 'backbone.') == (3, 4)


def test_sincos_positions():
    model = tiny(pos_init='sincos')
    assert (model.pos_embed[0, 0] == 0).all() and model.pos_embed.requires_grad
    assert model.pos_embed[0, 1:].norm(dim=-1).sub(4).abs().max() < 1e-5  # 16 sin^2 + cos^2


def test_autocast():
    model, x = tiny(keep_ratio=(0.9, 0.3)).eval(), images()
    with torch.no_grad(), torch.autocast('cpu', torch.bfloat16):
        got = model(x)[0]
    torch.testing.assert_close(got.float(), model(x)[0], rtol=0.1, atol=0.1)


@pytest.mark.parametrize('options', [
    dict(keep_ratio=(0.9, 0.1)),
    pytest.param(dict(keep_ratio=0.4, gather='before', num_qk_free=1), marks=pytest.mark.slow),
    pytest.param(dict(tome_r=6, out_type='featmap'), marks=pytest.mark.slow),
    pytest.param(dict(use_valid_mask=True, keep_ratio=0.4), marks=pytest.mark.slow)])
def test_one_graph_and_one_compilation_per_size(options):
    from torch._dynamo.testing import CompileCounterWithBackend
    torch._dynamo.reset()
    model = tiny(**options).eval()
    counter = CompileCounterWithBackend('aot_eager')
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    with torch.no_grad():
        for size, count in (((64, 64), 1), ((64, 96), 2), ((64, 64), 2)):
            x = images(*size, channels=4 if 'use_valid_mask' in options else 3)
            torch.testing.assert_close(compiled(x)[0], model(x)[0], rtol=1e-4, atol=1e-5)
            assert counter.frame_count <= count


@pytest.mark.parametrize('options, message', [
    (dict(arch='deit-huge'), "arch='deit-huge'"), (dict(arch=dict(embed_dim=32)), 'missing'),
    (dict(arch=dict(embed_dim=32, depth=1, num_heads=1, width=2)), 'width'),
    (dict(keep_ratio=0), 'keep_ratio=0'), (dict(keep_ratio=1.2), '1.2'),
    (dict(keep_ratio=(0.9, 0.5, 0.1)), '3 entries'), (dict(tau=0), 'tau=0'),
    (dict(tau=0.5, keep_ratio=0.5), 'keep_ratio=None or tau=None'),
    (dict(tau=0.5, keep_ratio_val=0.5), 'keep_ratio_val=None or tau_val=None'),
    (dict(keep_ratio=0.5, tau_val=0.5), 'keep_ratio_val=0.5 and tau_val=0.5'),
    (dict(patch_size=0), 'patch_size=0'), (dict(patch_size=-8), 'patch_size=-8'),
    (dict(arch=dict(embed_dim=32, depth=1, num_heads=1, patch_size=0)), 'patch_size=0'),
    (dict(img_size=0), 'img_size=0'), (dict(img_size=(64, -64)), 'img_size=.64, -64.'),
    (dict(img_size=(64,)), 'img_size'), (dict(drop_path_rate=1), 'drop_path_rate=1'),
    (dict(drop_path_rate=-.1), 'drop_path_rate=-0.1'), (dict(tome_r=4.5), 'merging r=4.5'),
    (dict(num_qk_free=3), 'num_qk_free=3'),
    (dict(out_indices=2), 'index 2'), (dict(out_type='map'), "out_type='map'"),
    (dict(with_cls_token=False), 'cls_token'), (dict(fc_norm=True), 'avg_featmap'),
    (dict(window_size=4), 'with_cls_token=False'), (dict(frozen_stages=3), 'frozen_stages=3'),
    (dict(tome_r=-1), 'merging'), (dict(trainable='head'), "trainable='head'"),
    (dict(patch_stem='conv', patch_size=14), 'power of 2'), (dict(key_bias=False, keep_ratio=.5),
                                                             'key_bias')])
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        BiasPrunedViT(**{'arch': 'tiny-test', **options})


def test_bad_input():
    with pytest.raises(ValueError, match='expected images'):
        tiny()(torch.zeros(1, 2, 64, 64))
