"""prune_attention on timm's models against the models themselves; calibrate_bias on real photos."""

import copy
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from PIL import Image

import mmext
from mmext.calibration import calibrate_bias
from mmext.layers.biased_attention import BiasedAttention
from mmext.ops import reference_key_bias_attention
from mmext.pruning import prune_attention, pruned_layers, set_keep_ratio

SMALL = dict(embed_dim=48, depth=3, num_heads=4, patch_size=16, img_size=64, num_classes=7)
MODELS = {
    'vit': ('vit_tiny_patch16_224', SMALL),
    'deit distilled': ('deit_tiny_distilled_patch16_224', SMALL),
    'dinov2 registers': ('vit_small_patch14_reg4_dinov2',
                         {**SMALL, 'patch_size': 14, 'img_size': 56, 'init_values': 0.3}),
    'clip': ('vit_base_patch16_clip_224', SMALL),
    'siglip': ('vit_base_patch16_siglip_224', SMALL),
    'qk norm': ('vit_tiny_patch16_224', dict(SMALL, qk_norm=True, init_values=0.5)),
    'scale norm': ('vit_tiny_patch16_224', dict(SMALL, scale_attn_norm=True)),
    'no qkv bias': ('vit_tiny_patch16_224', dict(SMALL, qkv_bias=False, class_token=False,
                                                 global_pool='avg')),
    'beit': ('beit_base_patch16_224', SMALL),
    'eva02': ('eva02_tiny_patch14_224', {**SMALL, 'patch_size': 14, 'img_size': 56}),
    'dinov3': ('vit_small_patch16_dinov3', SMALL),
}


def build(key):
    name, options = MODELS[key]
    if not timm.is_model(name):
        pytest.skip(f'timm {timm.__version__} has no {name}')
    torch.manual_seed(0)
    model = timm.create_model(name, **options).eval()
    with torch.no_grad():  # zero or tiny start values would hide what is compared
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model, torch.randn(2, 3, options['img_size'], options['img_size'])


@pytest.mark.parametrize('key', MODELS)
@torch.no_grad()
def test_dense_equals_the_original_and_undo_restores_it(key):
    model, x = build(key)
    want, weights = model(x), copy.deepcopy(model.state_dict())
    ids = {name: id(parameter) for name, parameter in model.named_parameters()}
    handle = prune_attention(model, keep_ratio=None)
    assert len(handle.layers) == 3
    torch.testing.assert_close(model(x), want, atol=1e-5, rtol=1e-5)
    for layer in handle.layers:
        layer.key_bias.weight.zero_()
    torch.testing.assert_close(model(x), want, atol=1e-5, rtol=1e-5)
    new = {f'{name}.key_bias.weight' for name, module in model.named_modules()
           if isinstance(module, BiasedAttention)}
    assert set(model.state_dict()) - set(weights) == new
    assert {n: id(p) for n, p in model.named_parameters() if n not in new} == ids

    model.set_keep_ratio(0.4)
    pruned = model(x)
    assert (pruned - want).abs().max() > 1e-3
    model.set_keep_ratio(None)
    torch.testing.assert_close(model(x), want, atol=1e-5, rtol=1e-5)
    attention = {type(layer) for layer in handle.layers}
    assert handle.undo() is model
    assert not attention & {type(module) for module in model.modules()}
    assert not hasattr(model, 'set_keep_ratio')
    assert {k: v.tolist() for k, v in model.state_dict().items()} == {
        k: v.tolist() for k, v in weights.items()}
    torch.testing.assert_close(model(x), want, atol=0, rtol=0)
    assert len(prune_attention(model).layers) == 3


@pytest.mark.parametrize('key', MODELS)
def test_masked_equals_gathered_with_gradients(key):
    """Training mode attends over N x N with a mask, validation over the kept columns only."""
    model, x = build(key)
    prune_attention(model, keep_ratio=(0.8, 0.3), train_mode='gather', val_mode='mask')
    for layer in pruned_layers(model):
        torch.nn.init.normal_(layer.key_bias.weight, std=0.2)
    out = {}
    for mode in ('gather', 'mask'):
        for layer in pruned_layers(model):
            layer.val_mode = mode
        model.zero_grad()
        y = model(x)
        y.square().mean().backward()
        out[mode] = [y, *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
    assert len(out['mask']) == len(out['gather'])
    for a, b in zip(out['mask'], out['gather'], strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-3)
    assert all(layer.key_bias.weight.grad.abs().sum() > 0 for layer in pruned_layers(model))


@torch.no_grad()
def test_pruned_attention_equals_the_reference_and_keeps_the_prefix():
    model, x = build('dinov2 registers')
    handle = prune_attention(model, keep_ratio=0.5)
    layer = handle.layers[1]
    torch.nn.init.normal_(layer.key_bias.weight, std=0.2)
    x = torch.randn(2, 21, 48)
    got, extras = layer.forward_intermediates(x)
    assert extras['kept'][..., :5].all() and (extras['kept'].sum(-1) == 10).all()
    q, k, v = layer.qkv(x).view(2, 21, 3, 4, 12).permute(2, 0, 3, 1, 4)
    bias = (x @ layer.key_bias.weight.t()).transpose(1, 2)
    out, attn = reference_key_bias_attention(q, k, v, bias, extras['kept'])
    torch.testing.assert_close(got, layer.proj(out.transpose(1, 2).flatten(2)))
    torch.testing.assert_close(extras['attn'], attn)


@torch.no_grad()
def test_attention_mask():
    """timm's attn_mask: columns that nobody may see are not chosen either."""
    model, _ = build('vit')
    layer = prune_attention(model, keep_ratio=None).layers[0]
    x = torch.randn(2, 12, 48)
    seen = torch.ones(2, 1, 12, 12, dtype=torch.bool)
    seen[..., 8:] = False
    torch.testing.assert_close(layer(x, attn_mask=seen)[:, :8], layer(x[:, :8]))
    layer.set_keep_ratio(0.5)
    got = layer(x, attn_mask=seen)[:, :8]
    layer.set_keep_ratio(0.5)
    chosen = layer.forward_intermediates(x, attn_mask=seen)[1]['kept']
    assert not chosen[..., 8:].any() and (chosen.sum(-1) == 4).all()
    torch.testing.assert_close(layer(x[:, :8])[:, 0], got[:, 0])
    with pytest.raises(ValueError, match='causal'):
        layer(x, is_causal=True)


def test_copies_pickles_and_half_precision():
    model, x = build('vit')
    prune_attention(model, keep_ratio=0.5)
    other = copy.deepcopy(model)
    loaded = pickle.loads(pickle.dumps(model))
    other.set_keep_ratio(None)
    with torch.no_grad():
        torch.testing.assert_close(loaded(x), model(x))
        assert (other(x) - model(x)).abs().max() > 1e-4
        half = copy.deepcopy(model).bfloat16()(x.bfloat16())
    assert half.dtype == torch.bfloat16 and half.isfinite().all()
    assert [layer.rule_val.ratio for layer in pruned_layers(model)] == [0.5] * 3


@pytest.mark.parametrize('name', ['swin_tiny_patch4_window7_224', 'xcit_nano_12_p16_224',
                                  'resnet18'])
def test_models_without_such_attention_are_refused(name):
    model = timm.create_model(name, num_classes=0)
    keys = set(model.state_dict())
    with pytest.raises(ValueError, match='no attention that can be pruned'):
        prune_attention(model)
    assert set(model.state_dict()) == keys


def test_wrong_arguments_leave_the_model_alone():
    model, x = build('vit')
    keys = set(model.state_dict())
    for options, message in ((dict(keep_ratio=1.2), 'keep_ratio=1.2'),
                             (dict(keep_ratio=(1, 2, 3, 4)), 'entries'),
                             (dict(val_mode='fast'), 'val_mode')):
        with pytest.raises(ValueError, match=message):
            prune_attention(model, **options)
        assert set(model.state_dict()) == keys
    with pytest.raises(ValueError, match='prune_attention first'):
        calibrate_bias(model, x)
    prune_attention(model, keep_ratio=None)
    with pytest.raises(ValueError, match='already'):
        prune_attention(model)
    with pytest.raises(ValueError, match='every column is kept'):
        calibrate_bias(model, x)
    with pytest.raises(ValueError, match='entries'):
        set_keep_ratio(model, [0.5] * 4)


@pytest.mark.parametrize('images', [torch.zeros(3, 64, 64), np.zeros((4, 3, 64, 64)), [1, 2]])
def test_calibration_says_what_images_it_takes(images):
    model, _ = build('vit')
    prune_attention(model, keep_ratio=0.5)
    with pytest.raises(ValueError, match=r'images must be one tensor \(n, 3, H, W\)'):
        calibrate_bias(model, images)


@pytest.mark.parametrize('change, warns', [
    (lambda pixels: pixels, 'range from 0 to 255'), (lambda pixels: pixels / 255, 'from 0 to 1'),
    (lambda pixels: pixels - 127, 'mean .0.5'), (lambda pixels: (pixels - 127) / 64, None)])
def test_calibration_warns_of_images_that_are_not_normalized(change, warns, recwarn):
    model, _ = build('vit')
    prune_attention(model, keep_ratio=0.5)
    pixels = torch.arange(256.).repeat(48).reshape(1, 3, 64, 64)
    calibrate_bias(model, change(pixels), steps=1)
    found = [str(w.message) for w in recwarn if 'normalized' in str(w.message)]
    assert len(found) == (warns is not None)
    assert warns is None or re.search(warns, found[0])


@pytest.mark.parametrize('key', ['dinov2 registers', 'beit', 'eva02', 'no qkv bias'])
def test_calibration_lowers_the_error(key):
    """On the calibration images, against as many columns ranked by a random direction."""
    model, _ = build(key)
    torch.manual_seed(1)
    images = F.interpolate(torch.randn(24, 3, 6, 6), MODELS[key][1]['img_size'], mode='bicubic')
    handle = prune_attention(model, keep_ratio=0.3)
    weights = {k: v.clone() for k, v in model.state_dict().items() if 'key_bias' not in k}
    start = calibrate_bias(model, images, steps=0)
    errors = calibrate_bias(model, images, steps=60)
    assert sum(errors) <= sum(start)

    inputs = {}
    hooks = [layer.register_forward_pre_hook(
        lambda module, args, kwargs: inputs.__setitem__(module, (args, kwargs)),
        with_kwargs=True) for layer in handle.layers]
    with torch.no_grad():
        model(images)
        for hook in hooks:
            hook.remove()
        change = dict(learned=0, random=0)
        for layer in handle.layers:
            args, kwargs = inputs[layer]
            layer.set_keep_ratio(None)
            dense = layer(*args, **kwargs)
            layer.set_keep_ratio(0.3)
            change['learned'] += (layer(*args, **kwargs) - dense).square().mean() / dense.var()
            layer.key_bias.weight.normal_(std=1e-6)
            change['random'] += (layer(*args, **kwargs) - dense).square().mean() / dense.var()
        assert change['learned'] < 0.9 * change['random'], change
    for name, value in weights.items():
        assert torch.equal(model.state_dict()[name], value)
    assert not model.training


def photos(folder, count):
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    out = []
    for path in sorted(folder.glob('*.jpg'))[:count]:
        image = Image.open(path).convert('RGB')
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        image = image.crop((left, top, left + side, top + side)).resize((224, 224), Image.BICUBIC)
        out.append((torch.from_numpy(np.array(image)) / 255 - mean) / std)
    return torch.stack(out).permute(0, 3, 1, 2)


@pytest.mark.slow
@torch.no_grad()
def test_calibrated_features_are_closer_than_with_random_columns(shared_dir):
    """Real weights; 64 photos to calibrate on, 42 others to compare class-token features on."""
    from safetensors.torch import load_file
    model = timm.create_model('deit_small_patch16_224', num_classes=0).eval()
    weights = load_file(shared_dir / 'weights' / 'vit_small_patch16_224_pretrained.safetensors')
    model.load_state_dict({name: value.float() for name, value in weights.items()})
    data = shared_dir / 'data' / 'coco_mini'
    test = photos(data / 'val2017', 42)
    dense = model(test)
    handle = prune_attention(model)

    def closeness(ratio):
        set_keep_ratio(model, ratio)
        return F.cosine_similarity(model(test), dense).mean().item()

    def any_columns(bias, valid, log_size, layer):
        """As many columns as the layer would keep, drawn anew for image and head."""
        return BiasedAttention.choose(layer, torch.rand_like(bias), valid, log_size)

    torch.manual_seed(0)
    for layer in handle.layers:
        layer.choose = lambda *args, layer=layer: any_columns(*args, layer)
    ratios = ((0.9, 0.1), 0.5)
    random = [closeness(ratio) for ratio in ratios]
    for layer in handle.layers:
        del layer.choose
    for ratio, value in zip(ratios, random, strict=True):
        calibrate_bias(model, photos(data / 'train2017', 64), keep_ratio=ratio)
        assert closeness(ratio) > value


def test_reached_lazily_through_the_package():
    assert mmext.prune_attention is prune_attention and mmext.calibrate_bias is calibrate_bias
    with pytest.raises(AttributeError, match='no attribute'):
        mmext.nothing_of_the_kind  # noqa: B018
    code = ('import sys, mmext; assert not {"torch", "mmengine", "mmcv"} & set(sys.modules); '
            'mmext.prune_attention; assert "torch" in sys.modules; '
            'assert not {"mmengine", "mmdet", "mmpretrain", "mmcv"} & set(sys.modules)')
    subprocess.run([sys.executable, '-c', code], check=True)


@torch.no_grad()
def test_new_bias_is_too_small_to_see_at_full_width():
    """768 channels, real norms: the dense output moves by rounding only."""
    torch.manual_seed(0)
    model = timm.create_model('vit_base_patch16_224', depth=4, num_classes=0).eval()
    for name, parameter in model.named_parameters():
        if 'norm' in name and name.endswith('weight'):
            parameter.mul_(4)
    x = torch.randn(1, 3, 224, 224)
    want = model(x)
    prune_attention(model, keep_ratio=None)
    assert (model(x) - want).abs().max() < 1e-5 * want.abs().max()


@pytest.mark.parametrize('key', MODELS)
def test_undo_leaves_no_module_behind(key):
    model, _ = build(key)
    before = {name: (type(module), set(vars(module)) | set(module._modules))
              for name, module in model.named_modules()}
    prune_attention(model).undo()
    assert before == {name: (type(module), set(vars(module)) | set(module._modules))
                      for name, module in model.named_modules()}


@pytest.mark.parametrize('name, count', [
    ('pit_ti_distilled_224', 2), ('pit_ti_224', 1), ('deit_tiny_distilled_patch16_224', 2),
    ('vit_base_patch16_siglip_224', 0), ('vit_small_patch14_reg4_dinov2', 5)])
@torch.no_grad()
def test_prefix_tokens_of_any_model_are_kept(name, count):
    model = timm.create_model(name, num_classes=0).eval()
    layers = prune_attention(model, keep_ratio=.3).layers
    assert {layer.num_prefix_tokens for layer in layers} == {count}
    layer = layers[0]
    x = torch.randn(1, 40, layer.key_bias.in_features)
    assert layer.forward_intermediates(x)[1]['kept'][..., :count].all()


def test_causal_attention_is_refused_by_every_form():
    for key in ('vit', 'eva02', 'dinov3'):
        model, _ = build(key)
        layer = prune_attention(model).layers[0]
        with pytest.raises(ValueError, match='causal'):
            layer(torch.randn(1, 10, 48), is_causal=True)


@pytest.mark.parametrize('std', [0., .02])
def test_start_of_the_timm_models(std):
    import mmext.timm_models  # noqa: F401
    model = timm.create_model('deit_tiny_bias_patch16_224', key_bias_std=std, depth=2)
    weight = torch.cat([layer.key_bias.weight for layer in pruned_layers(model)])
    assert weight.isfinite().all() and weight.std().item() == pytest.approx(std, rel=.2)


def test_the_class_token_stays_by_default_in_every_form():
    """The layer, our backbone, timm's model and a pruned one agree; k stays the same."""
    import mmext.timm_models  # noqa: F401
    from mmext.models import BiasPrunedViT
    size = dict(img_size=64, embed_dim=32, depth=2, num_heads=2)
    plain = timm.create_model('deit_tiny_patch16_224', **size)
    prune_attention(plain, .3)
    models = [
        plain, timm.create_model('deit_tiny_bias_patch16_224', keep_ratio=.3, **size),
        BiasPrunedViT('tiny-test', img_size=64, keep_ratio=.3),
        BiasedAttention(32, 2, keep_ratio=.3, num_prefix_tokens=1)]
    torch.manual_seed(0)
    for model in models:
        for layer in pruned_layers(model):
            torch.nn.init.normal_(layer.key_bias.weight)
            x = torch.randn(20, 17, 32)
            kept = layer.eval().forward_intermediates(x)[1]['kept']
            assert kept[..., 0].all() and (kept.sum(-1) == 5).all()
            layer.configure(keep_prefix=False)
            kept = layer.forward_intermediates(x)[1]['kept']
            assert not kept[..., 0].all() and (kept.sum(-1) == 5).all()


def test_recipes_of_the_page(root_dir, tmp_path, monkeypatch):
    """The blocks of docs/pruning.md in their order, with a small model and random pictures."""
    page = (root_dir / 'docs/pruning.md').read_text()
    blocks = dict(re.findall(r'<!-- (train|save|load) -->\n```python\n(.*?)```', page, re.S))
    assert list(blocks) == ['train', 'save', 'load']
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    made = timm.create_model
    monkeypatch.setattr(timm, 'create_model', lambda name, pretrained=False, **options: made(
        'vit_tiny_patch16_224', **{**SMALL, **options}))
    loader = [(torch.randn(4, 3, 64, 64), torch.randint(0, 7, (4,))) for _ in range(2)]
    names = {'timm': timm, 'mmext': mmext, 'torch': torch, 'loader': loader, 'epochs': 1,
             'images': torch.randn(4, 3, 64, 64)}
    for name, text in blocks.items():
        exec(text.replace('num_classes=1000', 'num_classes=7'), names)
        if name == 'train':
            moved = [layer.key_bias.weight.grad for layer in names['handle'].layers]
            assert all(grad is not None and grad.abs().sum() > 0 for grad in moved)
    loaded, trained = names['loaded'], names['model'].eval()
    with torch.no_grad():
        assert torch.equal(loaded(names['images']), trained(names['images']))
    assert [layer.rule_val for layer in pruned_layers(loaded)] == [
        layer.rule_val for layer in pruned_layers(trained)]


def test_timm_training_script_finds_the_models(root_dir):
    """The page's command up to its script: the name is known without changing timm's code."""
    page = (root_dir / 'docs/pruning.md').read_text()
    code, = re.findall(r'python -c "(import mmext[^"]*)" train.py', page)
    probe = code.split('runpy.run_path')[0] + (
        "import timm; model = timm.create_model('deit_tiny_bias_patch16_224', keep_ratio=[0.9, "
        "0.1]); print(model.blocks[0].attn.rule_val.ratio)")
    run = subprocess.run([sys.executable, '-c', probe, 'train.py'], capture_output=True, text=True)
    assert run.returncode == 0 and run.stdout.strip() == '0.9', run.stderr
