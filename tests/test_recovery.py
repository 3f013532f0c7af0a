"""recover against timm's own features of the dense model, on images it has not seen."""

import copy
import itertools

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from torchvision.transforms.v2 import functional as tv

import mmext
from mmext.layers.biased_attention import BiasedAttention
from mmext.models.backbones.bias_pruned_vit import BiasPrunedViT
from mmext.models.backbones.timm_vit import TimmViT
from mmext.ops.column_selection import num_kept
from mmext.pruning import prune_attention, pruned_layers, set_keep_ratio
from mmext.recovery import (
    RIDGE,
    Closeness,
    center_crop,
    choose_keep_ratio,
    correct,
    random_batches,
    random_crop,
    recover,
    ridge,
)

SMALL = dict(embed_dim=48, depth=3, num_heads=4, patch_size=8, img_size=64, num_classes=7)
ARCH = dict(embed_dim=48, depth=3, num_heads=4, patch_size=8)
MODELS = {
    'registers, layer scale': lambda: timm.create_model(
        'vit_small_patch14_reg4_dinov2', **{**SMALL, 'init_values': 0.3}),
    'class token, distilled': lambda: timm.create_model('deit_tiny_distilled_patch16_224', **SMALL),
    'mean pooling, no prefix': lambda: timm.create_model('vit_base_patch16_siglip_224', **SMALL),
    'relative positions': lambda: timm.create_model('beit_base_patch16_224', **SMALL),
    'rotary positions': lambda: timm.create_model('eva02_tiny_patch14_224', **SMALL),
    'windows, grid': lambda: timm.create_model(
        'samvit_base_patch16', embed_dim=48, depth=3, num_heads=4, patch_size=8, img_size=64,
        window_size=3, global_attn_indexes=(0, 2)),
    'BiasPrunedViT': lambda: BiasPrunedViT(ARCH, img_size=64, out_type='featmap'),
    'TimmViT': lambda: TimmViT('vit_tiny_patch16_224', patch_size=8, img_size=64,
                               model_args=dict(embed_dim=48, depth=3, num_heads=4)),
}


def build(key, keep_ratio=0.3):
    torch.manual_seed(0)
    model = MODELS[key]()
    with torch.no_grad():  # tiny start values would make every block the identity
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    if pruned_layers(model):
        model.set_keep_ratio(keep_ratio)
    else:
        prune_attention(model, keep_ratio)
    return model.eval()


def pictures(count, seed, side=80):
    generator = torch.Generator().manual_seed(seed)
    return F.interpolate(torch.randn(count, 3, 8, 8, generator=generator), (side, side + 16),
                         mode='bicubic')


def cosine(model, dense, images):
    with torch.no_grad():
        return F.cosine_similarity(
            model.forward_features(images), dense.forward_features(images), dim=-1)[:, 1:].mean()


def test_features_of_unseen_images_come_back():
    """Calibration alone reaches less; the dense model is timm's, never touched by this package."""
    model = build('registers, layer scale')
    dense = copy.deepcopy(model)
    set_keep_ratio(dense, None)
    unseen = pictures(16, 5)[..., :64, :64]
    before = cosine(model, dense, unseen)
    calibrated = copy.deepcopy(model)
    mmext.calibrate_bias(calibrated, pictures(24, 1)[..., :64, :64])
    half = cosine(calibrated, dense, unseen)
    found = recover(model, pictures(24, 1), size=64, steps=60)
    after = cosine(model, dense, unseen)
    assert before < half < after
    assert 1 - after < 0.7 * (1 - half), (before, half, after)
    assert found.before.patches < found.after.patches
    assert found.before.prefix < found.after.prefix
    assert found.after.patches > found.corrected.patches > found.calibrated.patches
    assert len(found.losses) == 60 and sum(found.losses[-10:]) < 0.85 * sum(found.losses[:10])
    assert [step for step, _ in found.curve] == list(range(6, 61, 6))
    assert found.curve[-1][1] == found.after


@pytest.mark.parametrize('key', MODELS)
def test_what_changes_and_what_stays(key):
    model = build(key).train()
    frozen = next(model.parameters()).requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    wishes = [parameter.requires_grad for parameter in model.parameters()]
    found = recover(model, pictures(10, 1), size=64, steps=3, batch_size=2)
    after = model.state_dict()
    assert list(before) == list(after)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed and all('blocks.' in name for name in changed)
    assert all(f'blocks.{i}.{name}' in ' '.join(changed)
               for i in (0, 2) for name in ('attn.key_bias', 'attn.proj', 'mlp'))
    assert [parameter.requires_grad for parameter in model.parameters()] == wishes
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training and not frozen.requires_grad
    assert not any(module._forward_hooks for module in model.modules())
    assert (found.after.prefix is None) == (pruned_layers(model)[0].num_prefix_tokens == 0)


def test_the_same_seed_gives_the_same():
    found = [recover(build('class token, distilled'), pictures(10, 1), size=64, steps=3,
                     batch_size=2, seed=seed) for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]


def test_the_measured_closeness_is_that_of_the_features():
    """In float32, of the images kept apart: the last eighth."""
    model = build('class token, distilled')
    dense = copy.deepcopy(model)
    images = pictures(17, 1, side=64)[..., 8:72]
    found = recover(model, images, size=64, steps=2, batch_size=2)
    set_keep_ratio(dense, None)
    with torch.no_grad():
        want = F.cosine_similarity(model.forward_features(images[-2:]).double(),
                                   dense.forward_features(images[-2:]).double(), dim=-1)
    assert found.after.patches == pytest.approx(want[:, 2:].mean().item(), abs=1e-5)
    assert found.after.prefix == pytest.approx(want[:, :2].mean().item(), abs=1e-5)


def test_the_ratio_given_stays_set():
    model = build('TimmViT', keep_ratio=None)
    recover(model, pictures(8, 1), keep_ratio=(0.9, 0.2), size=64, steps=1, batch_size=2)
    assert [layer.rule_val.ratio for layer in pruned_layers(model)] == pytest.approx([.9, .55, .2])
    assert [layer.rule_train.ratio for layer in pruned_layers(model)] == [None] * 3


GOOD = list(pictures(8, 0))


@pytest.mark.parametrize('images, options, message', [
    (GOOD[:5], {}, 'at least 8 float tensors .*got 5'),
    (np.zeros((8, 3, 64, 64)), {}, 'got ndarray'),
    (GOOD[:7] + [torch.zeros(64, 64)], {}, r'images\[7\] is \(64, 64\), torch.float32'),
    (GOOD[:7] + [torch.zeros(1, 64, 64)], {}, r'images\[7\] is \(1, 64, 64\)'),
    (torch.zeros(8, 3, 64, 64, dtype=torch.uint8), {}, r'images\[0\] is .*uint8'),
    (torch.full((8, 3, 64, 64), 128.), {}, 'values up to 128: normalize'),
    (torch.full((8, 3, 64, 64), torch.nan), {}, 'values up to nan'),
    (GOOD, dict(steps=0), 'steps=0 must be positive'),
    (GOOD, dict(lr=-1.), 'lr=-1.0 must be positive'),
    (GOOD, dict(size=(64,)), r'size=\(64,\) must be'),
    (GOOD, dict(keep_ratio=1.5), 'keep_ratio=1.5'),
    (GOOD, dict(lr=1e6, size=64, steps=30, batch_size=2), 'smaller lr'),
])
def test_bad_input_is_named(images, options, message):
    model = build('class token, distilled')
    with pytest.raises(ValueError, match=message):
        recover(model, images, **options)
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_a_model_that_drops_nothing_is_refused():
    with pytest.raises(ValueError, match='every column is kept'):
        recover(build('BiasPrunedViT', keep_ratio=None), GOOD)
    with pytest.raises(ValueError, match='prune_attention first'):
        recover(timm.create_model('vit_tiny_patch16_224', **SMALL), GOOD)


@pytest.mark.parametrize('height, width, size', [(80, 120, (64, 64)), (90, 60, (32, 64))])
def test_center_crop_is_torchvisions(height, width, size):
    image = pictures(1, 0, side=120)[0, :, :height, :width]
    scale = min(height / size[0], width / size[1])
    part = tv.center_crop(image, [round(size[0] * scale), round(size[1] * scale)])
    want = tv.resize(part, list(size), tv.InterpolationMode.BICUBIC, antialias=True)
    torch.testing.assert_close(center_crop(image, size), want, atol=1e-5, rtol=1e-5)


def test_random_crops_are_parts_of_the_image():
    """Of two ramps, along x and along y, a crop is a ramp again, with the share of its range."""
    y, x = torch.meshgrid(torch.linspace(0, 1, 90), torch.linspace(0, 1, 120), indexing='ij')
    image = torch.stack([x, y, torch.zeros_like(x)])
    generator = torch.Generator().manual_seed(0)
    shares, mirrored, recolored = [], 0, 0
    for _ in range(200):
        crop = random_crop(image, (32, 48), generator)
        assert crop.shape == (3, 32, 48)
        if crop[2].abs().max() > 1e-6:
            recolored += 1
            continue
        (left, right), (top, bottom) = crop[0].mean(0)[[4, -5]], crop[1].mean(1)[[4, -5]]
        mirrored += left > right
        shares.append((right - left).abs() * 48 / 40 * (bottom - top) * 32 / 24)
        assert bottom > top and crop[:2].min() >= -0.05 and crop[:2].max() <= 1.05
    assert 120 < recolored < 190
    assert 0.25 < min(shares) < 0.45 and 0.7 < max(shares) < 1.1
    assert 0.2 < mirrored / len(shares) < 0.8


def test_every_image_once_before_any_again():
    images = [torch.full((3, 16, 16), float(i)) for i in range(10)]
    generator = torch.Generator().manual_seed(0)
    for first, second in zip(*[iter(random_batches(images, (8, 8), 5, 20, generator))] * 2,
                             strict=True):
        seen = torch.cat([first, second]).mean((1, 2, 3)).sort()[0]
        assert (seen - torch.arange(10.)).abs().max() < 1.5  # brightness and tint change by .7


def test_closeness_reads_well():
    assert str(Closeness(0.93123, None)) == 'patch tokens 0.931'
    assert str(Closeness(0.93123, 0.95)) == 'patch tokens 0.931, prefix tokens 0.950'


@pytest.mark.slow
def test_real_photos_come_back_after_few_steps(shared_dir):
    """Real weights, 64 photos, 128 crops; measured on 12 other photos by timm's forward pass."""
    from PIL import Image
    from safetensors.torch import load_file
    dense = timm.create_model('deit_small_patch16_224', num_classes=0).eval()
    weights = load_file(shared_dir / 'weights' / 'vit_small_patch16_224_pretrained.safetensors')
    dense.load_state_dict({name: value.float() for name, value in weights.items()})
    data = shared_dir / 'data' / 'coco_mini'

    def photos(folder, count):
        return [tv.normalize(tv.to_dtype(tv.pil_to_tensor(Image.open(path).convert('RGB')),
                                         torch.float32, scale=True),
                             [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
                for path in sorted((data / folder).glob('*.jpg'))[:count]]

    unseen = torch.stack([center_crop(photo, (224, 224)) for photo in photos('val2017', 12)])
    model = copy.deepcopy(dense)
    prune_attention(model, keep_ratio=(0.9, 0.1))
    calibrated = copy.deepcopy(model)
    seen = photos('train2017', 64)
    mmext.calibrate_bias(calibrated, torch.stack([center_crop(one, (224, 224)) for one in seen]))
    half = cosine(calibrated, dense, unseen)
    recover(model, seen, steps=32, batch_size=4)
    after = cosine(model, dense, unseen)
    assert after > half + 0.03, (half, after)


# ------------------------------------------------------------------------------------ regression


def test_ridge_is_numpys_least_squares():
    """In float64, the penalty as further rows."""
    generator = np.random.default_rng(0)
    h, change = generator.normal(size=(5, 7, 12)) + 1, generator.normal(size=(5, 7, 4)) - 2
    weight = generator.uniform(0.5, 3, size=7)
    rows = np.tile(weight / weight.sum() / 5, 5)[:, None]
    flat = h.reshape(-1, 12)
    penalty = RIDGE * (rows * flat ** 2).sum(0).mean()
    left = np.block([[np.sqrt(rows) * flat, np.sqrt(rows)],
                     [np.sqrt(penalty) * np.eye(12), np.zeros((12, 1))]])
    right = np.concatenate([np.sqrt(rows) * change.reshape(-1, 4), np.zeros((12, 4))])
    want = np.linalg.lstsq(left, right, rcond=None)[0]
    slope, shift = ridge(torch.tensor(h), torch.tensor(change), torch.tensor(weight))
    np.testing.assert_allclose(slope, want[:-1], atol=1e-6)
    np.testing.assert_allclose(shift, want[-1], atol=1e-6)


@pytest.mark.parametrize('key', [
    'registers, layer scale', 'relative positions', 'rotary positions', 'windows, grid',
    'BiasPrunedViT'])
def test_a_correction_brings_the_stream_nearer(key):
    """The tokens after the last attention, of other images; by the models' own passes."""
    model = build(key, keep_ratio=0.2)
    teacher = copy.deepcopy(model)
    set_keep_ratio(teacher, None)

    @torch.no_grad()
    def stream(net, images):
        norm = [module for name, module in net.named_modules() if name.endswith('.norm2')][-1]
        found = []
        hook = norm.register_forward_pre_hook(lambda module, args: found.append(args[0].clone()))
        net(images)
        hook.remove()
        return found[0]

    unseen = pictures(12, 7)[..., :64, :64]
    wanted, before = stream(teacher, unseen), stream(model, unseen)
    weights = copy.deepcopy(model.state_dict())
    ratios = correct(model, teacher, pictures(64, 1)[..., :64, :64])
    after = stream(model, unseen)
    assert len(ratios) == len(pruned_layers(model)) and min(ratios) < 1
    assert (after - wanted).square().mean() < 0.9 * (before - wanted).square().mean()
    changed = {name for name, value in model.state_dict().items()
               if not torch.equal(value, weights[name])}
    assert changed and all('.attn.proj.' in name for name in changed)


def test_blocks_of_another_form_are_left_alone():
    torch.manual_seed(0)
    model = timm.create_model('vit_tiny_patch16_224', block_fn=timm.models.vision_transformer.
                              ResPostBlock, **SMALL).eval()
    prune_attention(model, 0.3)
    teacher = copy.deepcopy(model)
    before = copy.deepcopy(model.state_dict())
    assert correct(model, teacher, pictures(8, 1)[..., :64, :64]) == []
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# ------------------------------------------------------------------------------------ keep ratios


@pytest.mark.parametrize('key', ['class token, distilled', 'windows, grid', 'BiasPrunedViT'])
def test_the_chosen_ratios_change_the_blocks_least(key):
    """Of all ways to share out the same columns over a coarse grid, tried one by one."""
    model = build(key, keep_ratio=(0.9, 0.2))
    images = pictures(4, 2)[..., :64, :64]
    layers = pruned_layers(model)
    tokens = 64 + layers[0].num_prefix_tokens
    before = sum(num_kept(layer.rule_val.ratio, tokens) for layer in layers)
    ratios = choose_keep_ratio(model, images)
    assert [layer.rule_val.ratio for layer in layers] == ratios
    assert [layer.rule_train.ratio for layer in layers] == ratios
    assert before - len(layers) * 4 <= sum(num_kept(r, tokens) for r in ratios) <= before

    dense = copy.deepcopy(model)
    set_keep_ratio(dense, None)
    inputs, outputs = {}, {}
    names = [name.rpartition('.')[0] for name, module in model.named_modules()
             if isinstance(module, BiasedAttention)]
    for name in names:
        dense.get_submodule(name).register_forward_hook(
            lambda block, args, kwargs, out, name=name: (
                inputs.update({name: (args, kwargs)}), outputs.update({name: out}), None)[-1],
            with_kwargs=True)
    with torch.no_grad():
        dense(images)

    @torch.no_grad()
    def change(name, layer, ratio):
        args, kwargs = inputs[name]
        layer.set_keep_ratio(ratio)
        found = model.get_submodule(name)(*args, **kwargs).flatten(1, -2)
        wanted = outputs[name].flatten(1, -2)
        found, wanted = (x - x.mean(-1, keepdim=True) for x in (found, wanted))
        distance = 1 - F.cosine_similarity(found, wanted, dim=-1)
        prefix = layer.num_prefix_tokens
        return distance[:, prefix:].mean() + (0.5 * distance[:, :prefix].mean() if prefix else 0)

    grid = sorted({0.1, 0.3, 0.5, 0.7, 0.9, *ratios})
    cost = [{ratio: change(name, layer, ratio) for ratio in grid}
            for name, layer in zip(names, layers, strict=True)]
    chosen = sum(one[ratio] for one, ratio in zip(cost, ratios, strict=True))
    least = min(sum(one[ratio] for one, ratio in zip(cost, way, strict=True))
                for way in itertools.product(grid, repeat=len(layers))
                if sum(num_kept(ratio, tokens) for ratio in way) <= before)
    assert chosen <= least + 1e-4


def test_choosing_leaves_the_rest_as_it_was():
    model = build('class token, distilled', keep_ratio=(0.9, 0.2)).train()
    before = copy.deepcopy(model.state_dict())
    ratios = choose_keep_ratio(model, pictures(4, 2)[..., :64, :64], keep_ratio=0.5)
    assert sum(num_kept(ratio, 66) for ratio in ratios) <= 3 * 33
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
    with pytest.raises(ValueError, match='images must be one tensor'):
        choose_keep_ratio(model, GOOD)
