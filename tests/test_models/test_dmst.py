"""DMST / ToST: parameters, official names and equations, masks, outputs, the base's contract."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mmext.layers import DMSA, TSSA
from mmext.models import DMST, ToST
from mmext.models.backbones import dmst as dmst_module
from mmext.registry import MODELS

TINY = dict(embed_dim=32, depth=3, num_heads=4)


def randomise(model, seed=0):
    """Values that make every term of every equation count, batch-norm statistics included."""
    torch.manual_seed(seed)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if 'running_var' in name:
            nn.init.uniform_(tensor, .5, 1.5)
        elif tensor.is_floating_point():
            noise = torch.randn_like(tensor) * (.15 if tensor.ndim > 1 else .1)
            norm_or_temp = tensor.ndim == 1 and name.endswith(('weight', 'gamma1', 'gamma2'))
            tensor.data = noise + (1. if norm_or_temp or name.endswith('temp') else 0.)
    return model.eval()


# ------------------------------------------------------------------------------- parameters
@pytest.mark.parametrize('cls, arch, millions', [
    (ToST, 'tiny', 5.769), (ToST, 'small', 22.590), (ToST, 'medium', 71.48),
    (DMST, 'tiny', 5.778), (DMST, 'small', 22.627), (DMST, 'medium', 71.58),
    (ToST, 'tiny-24', 10.22), (ToST, 'small-24', 40.34), (ToST, 'large', 160.29)])
def test_published_parameter_counts(cls, arch, millions):
    with torch.device('meta'):
        model = cls(arch)
        head = nn.Linear(model.embed_dim, 1000)
    count = sum(p.numel() for p in [*model.parameters(), *head.parameters()]) / 1e6
    assert count == pytest.approx(millions, abs=6e-4 if arch in ('tiny', 'small') else 6e-3)


@pytest.mark.parametrize('name, dim, depth, patch', [
    ('tost_cab_tiny_12_p16', 192, 12, 16), ('tost_cab_small_24_p8', 384, 24, 8),
    ('medium', 512, 24, 16), ('dmst-tiny', 192, 12, 16), ('t', 192, 12, 16)])
def test_arch_aliases(name, dim, depth, patch):
    with torch.device('meta'):
        model = DMST(name)
    assert (model.embed_dim, model.depth, model.patch_size) == (dim, depth, patch)


# ------------------------------------------------------------------------------- official ToST
def official_forward(sd, x, depth, heads):
    """ToST's equations on its state dict, written down on their own; class features (B, C)."""
    def linear(x, name):
        return x @ sd[name + '.weight'].T + sd[name + '.bias']

    def norm(x, name):
        mean, var = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
        return (x - mean) / (var + 1e-6).sqrt() * sd[name + '.weight'] + sd[name + '.bias']

    def mlp(x, name):
        return linear(F.gelu(linear(x, name + '.fc1')), name + '.fc2')

    convs = sorted({int(k.split('.')[2]) for k in sd if k.startswith('patch_embed.proj')})
    for i in convs:
        bn = f'patch_embed.proj.{i}.1.'
        x = F.conv2d(x, sd[f'patch_embed.proj.{i}.0.weight'], stride=2, padding=1)
        shape = (1, -1, 1, 1)
        x = (x - sd[bn + 'running_mean'].view(shape)) / (
            sd[bn + 'running_var'].view(shape) + 1e-5).sqrt()
        x = x * sd[bn + 'weight'].view(shape) + sd[bn + 'bias'].view(shape)
        x = F.gelu(x) if i != convs[-1] else x
    h, w = x.shape[-2:]
    x = x.flatten(2).transpose(1, 2)

    feature = torch.zeros(h, w, 64, dtype=x.dtype)
    for i in range(32):
        freq = 10000.**(-2 * (i // 2) / 32)
        wave = math.sin if i % 2 == 0 else math.cos
        for r in range(h):
            for c in range(w):
                feature[r, c, i] = wave((r + 1) / (h + 1e-6) * 2 * math.pi * freq)
                feature[r, c, 32 + i] = wave((c + 1) / (w + 1e-6) * 2 * math.pi * freq)
    proj = 'pos_embeder.token_projection'
    x = x + (feature.view(h * w, 64) @ sd[proj + '.weight'][:, :, 0, 0].T + sd[proj + '.bias'])

    for i in range(depth):
        b = f'blocks.{i}.'
        v = linear(norm(x, b + 'norm1'), b + 'attn.qkv').unflatten(-1, (heads, -1)).transpose(1, 2)
        unit = v / v.square().sum(2, keepdim=True).sqrt().clamp_min(1e-12)
        pi = (unit.square().sum(-1) * sd[b + 'attn.temp']).softmax(1)
        share = pi / (pi.sum(-1, keepdim=True) + 1e-8)
        m = torch.einsum('bhn,bhnp->bhp', share, v.square())
        y = -v * pi[..., None] / (1 + m[:, :, None])
        x = x + sd[b + 'gamma1'] * linear(y.transpose(1, 2).flatten(2), b + 'attn.to_out.0')
        x = x + sd[b + 'gamma2'] * mlp(norm(x, b + 'norm2'), b + 'mlp')

    x = torch.cat([sd['cls_token'].expand(len(x), -1, -1), x], 1)
    for i in range(2):
        b = f'cls_attn_blocks.{i}.'
        y = norm(x, b + 'norm1')
        q, k, v = linear(y, b + 'attn.qkv').unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        attn = ((q[:, :, :1] * k).sum(-1) * q.shape[-1]**-.5).softmax(-1)
        cls = linear(torch.einsum('bhn,bhnp->bhp', attn, v).flatten(1), b + 'attn.proj')
        x = x + sd[b + 'gamma1'] * torch.cat([cls[:, None], y[:, 1:]], 1)
        x = norm(x, b + 'norm2')
        x = x + torch.cat([sd[b + 'gamma2'] * mlp(x[:, :1], b + 'mlp'), x[:, 1:]], 1)
    return norm(x, 'norm')[:, 0]


def official_names(depth, patch=16):
    """State-dict names of the official code (with its batch-norm buffers), without the head."""
    ends = ('weight', 'bias')
    names = ['cls_token', *(f'pos_embeder.token_projection.{e}' for e in ends),
             *(f'norm.{e}' for e in ends)]
    for i in range(4 if patch == 16 else 3):
        names.append(f'patch_embed.proj.{2 * i}.0.weight')
        names += [f'patch_embed.proj.{2 * i}.1.{e}' for e in (
            *ends, 'running_mean', 'running_var', 'num_batches_tracked')]
    for i in range(depth):
        names += [f'blocks.{i}.{n}' for n in ('gamma1', 'gamma2', 'attn.temp')]
        names += [f'blocks.{i}.{n}.{e}' for e in ends for n in (
            'norm1', 'norm2', 'attn.qkv', 'attn.to_out.0', 'mlp.fc1', 'mlp.fc2')]
    for i in range(2):
        names += [f'cls_attn_blocks.{i}.{n}' for n in ('gamma1', 'gamma2')]
        names += [f'cls_attn_blocks.{i}.{n}.{e}' for e in ends for n in (
            'norm1', 'norm2', 'attn.qkv', 'attn.proj', 'mlp.fc1', 'mlp.fc2')]
    return set(names)


@pytest.mark.parametrize('patch', [16, 8])
def test_official_names(patch):
    with torch.device('meta'):
        assert set(ToST(f'tost_cab_tiny_12_p{patch}').state_dict()) == official_names(12, patch)
        new = set(DMST('tiny').state_dict()) - official_names(12)
    assert new == {f'blocks.{i}.attn.membership.weight' for i in range(12)}


@pytest.mark.parametrize('patch, size', [(16, (64, 96)), (8, (32, 24))])
def test_equals_the_official_equations(patch, size):
    model = randomise(ToST(TINY, patch_size=patch)).double()
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    expected = official_forward(model.state_dict(), x, 3, 4)
    torch.testing.assert_close(model(x)[0], expected, rtol=1e-5, atol=1e-6)


def test_loads_an_official_file(tmp_path):
    source = randomise(ToST(TINY))
    state = dict(source.state_dict())
    state |= {'head.weight': torch.randn(1000, 32), 'head.bias': torch.randn(1000)}
    path = tmp_path / 'tost.pth'
    torch.save({'model': state, 'epoch': 3}, path)
    x = torch.randn(1, 3, 64, 64)

    model = ToST(TINY, init_cfg=dict(type='Pretrained', checkpoint=str(path)))
    model.init_weights()
    torch.testing.assert_close(model.eval()(x)[0], source(x)[0])

    dense = ToST(TINY, out_type='featmap')
    report = dense.load_pretrained(str(path))
    assert not report.new and 'cls_token' in report.dropped
    expected = source.forward_intermediates(x)[2]['x_out']
    torch.testing.assert_close(dense.eval()(x)[0].flatten(2).transpose(1, 2), expected)

    early = ToST(TINY, out_type='featmap', out_indices=0)
    early.load_pretrained(str(path))
    report = DMST(TINY).load_pretrained(str(path))
    assert report.new == [f'blocks.{i}.attn.membership.weight' for i in range(3)]

    with pytest.raises(ValueError, match=r'names left over: blocks\.2'):
        ToST(dict(TINY, depth=2)).load_pretrained(str(path))
    with pytest.raises(ValueError, match='parameters missing'):
        ToST(dict(TINY, depth=4)).load_pretrained(str(path))
    with pytest.raises(ValueError, match='parameters missing'):
        DMST(TINY, attn='mhsa').load_pretrained(str(path))

    torch.save({'state_dict': {'backbone.' + k: v for k, v in source.state_dict().items()}}, path)
    assert not ToST(TINY).load_pretrained(str(path)).new


# ------------------------------------------------------------------------------- outputs
@pytest.mark.parametrize('attn', ['dmsa', 'tssa', 'mssa', 'mhsa', 'gated'])
@pytest.mark.parametrize('out_type', ['featmap', 'cls_token', 'avg_featmap', 'raw'])
def test_outputs_and_gradients(attn, out_type):
    torch.manual_seed(0)
    model = DMST(TINY, attn=attn, out_type=out_type)
    out, = model(torch.randn(2, 3, 50, 70))
    assert out.shape == {'featmap': (2, 32, 4, 5), 'cls_token': (2, 32),
                         'avg_featmap': (2, 32), 'raw': (2, 20, 32)}[out_type]
    assert out_type != 'featmap' or out.is_contiguous()
    out.sin().sum().backward()
    for name, p in model.named_parameters():
        assert p.grad is not None and p.grad.isfinite().all(), name


@pytest.mark.parametrize('patch', [8, 16])
def test_dense_outputs_of_several_blocks(patch):
    model = randomise(DMST(TINY, patch_size=patch, out_type='featmap', out_indices=(0, -1)))
    x = torch.randn(1, 3, 64, 48)
    first, last = model(x)
    steps = model.forward_intermediates(x)
    for out, i in ((first, 0), (last, 2)):
        assert out.shape == (1, 32, 64 // patch, 48 // patch)
        torch.testing.assert_close(out.flatten(2).transpose(1, 2), steps[i]['x_out'])


def test_average_and_normed_output():
    model = randomise(DMST(TINY, out_type='avg_featmap'))
    x = torch.randn(2, 3, 32, 32)
    tokens = model.norm(model.forward_intermediates(x, [-1])[2]['x_out'])
    torch.testing.assert_close(model(x)[0], tokens.mean(1))


def test_intermediates_are_the_layers_own():
    model = randomise(DMST(TINY))
    x = torch.randn(1, 3, 48, 64)
    steps = model.forward_intermediates(x, layers=(1,))
    assert list(steps) == [1]
    step, block = steps[1], model.blocks[1]
    y, extras = block.attn.forward_intermediates(block.norm1(step['x_in']), (3, 4))
    torch.testing.assert_close(step['membership'], extras['membership'])
    torch.testing.assert_close(step['gate'].sum(1), torch.ones(1, 12))
    mid = step['x_in'] + block.gamma1 * y
    expected = mid + block.gamma2 * block.mlp(block.norm2(mid))
    torch.testing.assert_close(step['x_out'], expected)


@pytest.mark.parametrize('size', [(37, 51), (33, 47), (48, 65)])
def test_any_size_goes_through_the_stem_as_it_is(size):
    """As in the official model, whose stem of stride-2 convolutions rounds up by itself; and a mask
    that is all image changes nothing."""
    model = randomise(DMST(TINY, out_type='featmap')).eval()
    x = torch.randn(1, 3, *size)
    stem = model.patch_embed.proj(x)
    tokens, hw, _ = model.embed(x)
    assert hw == stem.shape[-2:] == tuple(-(-side // 16) for side in size)
    torch.testing.assert_close(
        tokens - model.pos_embeder(hw), stem.flatten(2).transpose(1, 2), atol=1e-5, rtol=1e-5)
    whole = torch.cat([x, torch.ones(1, 1, *size)], 1)
    torch.testing.assert_close(model(whole)[0], model(x)[0], atol=1e-5, rtol=1e-5)


# ------------------------------------------------------------------------------- mask
def on_canvas(x, scale, fill):
    """The image in the top left corner of a canvas, and its mask as fourth channel."""
    b, _, h, w = x.shape
    canvas = torch.full((b, 4, h * scale, w * scale), fill)
    canvas[:, 3] = 0
    canvas[:, :3, :h, :w] = x
    canvas[:, 3, :h, :w] = 1
    return canvas


@pytest.mark.parametrize('attn', ['dmsa', 'tssa', 'mhsa'])
@pytest.mark.parametrize('size', [(96, 128), (90, 120)])
def test_masked_canvas_gives_the_same_features(attn, size):
    model = randomise(DMST(TINY, attn=attn, out_type='featmap'))
    torch.manual_seed(1)
    x = torch.randn(2, 3, *size)
    h, w = math.ceil(size[0] / 16), math.ceil(size[1] / 16)
    own = model(on_canvas(x, 1, 0.))[0]
    canvas = on_canvas(x, 2, 3.)
    masked = model(canvas)[0][..., :h, :w]
    torch.testing.assert_close(masked, own, rtol=1e-4, atol=1e-5)
    if size == (96, 128):
        torch.testing.assert_close(own, model(x)[0], rtol=1e-4, atol=1e-5)
    # away from the image's border, without the mask, nothing fits
    plain = model(canvas[:, :3])[0][..., :h, :w]
    inner = (slice(None), slice(None), slice(1, h - 2), slice(1, w - 2))
    error = (plain[inner] - own[inner]).abs() / own[inner].abs().clamp_min(1e-3)
    assert error.median() > 1e-2


def test_masked_class_token_and_average():
    torch.manual_seed(2)
    x = torch.randn(1, 3, 64, 64)
    for out_type in ('cls_token', 'avg_featmap'):
        model = randomise(DMST(TINY, out_type=out_type))
        torch.testing.assert_close(model(on_canvas(x, 2, 3.))[0], model(x)[0],
                                   rtol=1e-4, atol=1e-5)


def test_fourier_positions_follow_the_image():
    from timm.models.xcit import PositionalEncodingFourier
    torch.manual_seed(3)
    theirs, ours = PositionalEncodingFourier(dim=16), dmst_module.FourierPosition(dim=16)
    ours.load_state_dict(theirs.state_dict())
    expected = theirs(1, 3, 5).flatten(2).transpose(1, 2)
    torch.testing.assert_close(ours((3, 5)), expected)
    valid = torch.zeros(1, 6, 8, dtype=torch.bool)
    valid[:, :3, :5] = True
    masked = ours((6, 8), valid.flatten(1)).unflatten(1, (6, 8))[:, :3, :5].flatten(1, 2)
    torch.testing.assert_close(masked, expected)


# ------------------------------------------------------------------------------- contract
def test_checkpointing_keeps_values_and_gradients():
    x = torch.randn(1, 3, 48, 48)
    grads = []
    for with_cp in (False, True):
        model = randomise(DMST(TINY, with_cp=with_cp)).train()
        model(x)[0].sum().backward()
        grads.append([p.grad for p in model.parameters()])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


def test_frozen_stages_survive_train():
    model = DMST(TINY, frozen_stages=1).train()
    frozen = {n for n, p in model.named_parameters() if not p.requires_grad}
    assert frozen == {n for n, _ in model.named_parameters()
                      if n.startswith(('patch_embed', 'pos_embeder', 'cls_token', 'blocks.0.'))}
    before = model.patch_embed.proj[0][1].running_mean.clone()
    model(torch.randn(2, 3, 32, 32))
    assert torch.equal(before, model.patch_embed.proj[0][1].running_mean)
    assert model.blocks[1].training


def test_layer_depth_and_weight_decay():
    model = DMST(TINY)
    depth = {n: model.get_layer_depth('backbone.' + n, 'backbone.')
             for n, _ in model.named_parameters()}
    assert {n for n, d in depth.items() if d == (0, 5)} == {
        n for n in depth if n.startswith(('patch_embed', 'pos_embeder', 'cls_token'))}
    assert depth['blocks.1.attn.temp'] == (2, 5)
    assert depth['cls_attn_blocks.0.attn.qkv.weight'] == depth['norm.weight'] == (4, 5)
    assert model.no_weight_decay() == {'cls_token', *(f'blocks.{i}.attn.temp' for i in range(3))}


def test_drop_path_is_constant_and_layer_scale_as_published():
    model = DMST('tiny', drop_path_rate=.1)
    assert [b.drop_path.drop_prob for b in model.blocks] == [.1] * 12
    assert not any(isinstance(m, type(model.blocks[0].drop_path))
                   for m in model.cls_attn_blocks.modules())
    assert (model.blocks[0].gamma1 == 1).all()
    deep = DMST(dict(TINY, eta=1e-5))
    assert deep.blocks[0].gamma2.unique().item() == pytest.approx(1e-5)
    assert deep.norm.eps == 1e-6


def test_norm_of_the_stem_follows_the_process_group(monkeypatch):
    assert isinstance(DMST(TINY).patch_embed.proj[0][1], nn.BatchNorm2d)
    monkeypatch.setattr(torch.distributed, 'is_initialized', lambda: True)
    monkeypatch.setattr(torch.distributed, 'get_world_size', lambda: 2)
    assert isinstance(DMST(TINY).patch_embed.proj[0][1], nn.BatchNorm2d)  # CPU processes
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    synced = DMST(TINY)
    assert isinstance(synced.patch_embed.proj[6][1], nn.SyncBatchNorm)
    monkeypatch.undo()
    assert set(synced.state_dict()) == set(DMST(TINY).state_dict())


@pytest.mark.parametrize('name, attn', [('mmext.DMST', DMSA), ('mmext.ToST', TSSA)])
def test_built_by_name(name, attn):
    model = MODELS.build(dict(type=name, arch='tiny-test', out_type='avg_featmap'))
    assert all(type(block.attn) is attn for block in model.blocks)


def test_a_layer_of_ones_own_is_a_registry_entry():
    @MODELS.register_module(force=True)
    class MyAttention(TSSA):
        """Registered as docs/extending.md shows."""

        def __init__(self, *args, strength=1., **kwargs):
            super().__init__(*args, **kwargs)
            self.strength = strength

    model = DMST(TINY, attn=dict(type='MyAttention', strength=2.))
    assert {block.attn.strength for block in model.blocks} == {2.}
    with pytest.raises(TypeError, match='stregth'):
        DMST(TINY, attn=dict(type='mmext.DMSA', stregth=2.))


@pytest.mark.parametrize('options, message', [
    (dict(arch='huge'), "arch='huge'"),
    (dict(arch=dict(embed_dim=32, depth=2)), r"missing \['num_heads'\]"),
    (dict(arch=TINY, patch_size=14), 'patch_size=14'),
    (dict(arch=TINY, patch_size=0), 'patch_size=0'),
    (dict(arch=TINY, drop_path_rate=1.), 'drop_path_rate=1.0'),
    (dict(arch=TINY, drop_path_rate=-1), 'drop_path_rate=-1'),
    (dict(arch=TINY, attn=dict(type='mmext.DMSA', gate_act='none', gate_power=2)), 'gate_power=2'),
    (dict(arch=TINY, attn='lstm'), "attn='lstm'"),
    (dict(arch=TINY, out_indices=(0, 1)), "out_type='cls_token'"),
    (dict(arch=TINY, out_type='map'), "out_type='map'"),
    (dict(arch=TINY, attn=dict(type='mmext.DMSA', gate_act='swish')), "gate_act='swish'"),
    (dict(arch=dict(TINY, embed_dim=36)), 'embed_dim=36'),
])
def test_errors_name_the_value(options, message):
    with pytest.raises(ValueError, match=message):
        DMST(**options)


def test_attention_options_reach_the_layers():
    model = DMST(TINY, attn=dict(type='mmext.DMSA', sparse_dim='token', use_temp=False,
                                 rope='none'))
    assert all(b.attn.options['sparse_dim'] == 'token' and b.attn.temp is None
               for b in model.blocks)
    assert DMST(TINY, attn='mssa').blocks[0].attn.qkv.bias is None
    assert DMST(TINY, attn=dict(type='mmext.GatedMHSA', gate='elementwise')
                ).blocks[0].attn.gate.out_features == 32


def test_compiled_equals_eager():
    model = randomise(DMST(TINY, out_type='featmap'))
    x = torch.randn(1, 3, 32, 48)
    compiled = torch.compile(model, fullgraph=True, backend='aot_eager')
    with torch.no_grad():
        torch.testing.assert_close(compiled(x)[0], model(x)[0], rtol=1e-4, atol=1e-5)
