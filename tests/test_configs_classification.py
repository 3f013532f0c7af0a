"""Every classification config builds, trains a step and reads its data as it says."""

import math
import re
from pathlib import Path

import mmcv
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, PARAM_SCHEDULERS, TRANSFORMS, DefaultScope, init_default_scope

import mmext.registry  # noqa: F401  (before mmpretrain)
from mmext.compat.cpu import adapt_config

CONFIGS = Path(__file__).resolve().parents[1] / 'configs'
FILES = [path for folder in ('deit_bias', 'dmst', 'tost')
         for path in sorted((CONFIGS / folder).glob('*.py'))]
LARGE = re.compile(r'vit-l|deit-b|-m_')  # seconds each


def names(paths):
    return [pytest.param(path, id=f'{path.parent.name}/{path.stem}',
                         marks=[pytest.mark.slow] if LARGE.search(path.stem) else [])
            for path in paths]


def one_of_each(key):
    """The first config of every value of ``key(model, setting, dataset)``, the parts of the name;
    numbers (ratios, depths) and sizes make no model of their own."""
    found = {}
    for path in FILES:
        model, setting, dataset = path.stem.split('_')
        model = re.sub(r'\d+(\.\d+)?', '#', re.sub(r'-(ti|t|s|b|m)\b', '', model))
        found.setdefault((path.parent.name, *key(model, setting, dataset)), path)
    return list(found.values())


@pytest.fixture(autouse=True)
def scope():
    init_default_scope('mmpretrain')
    yield
    DefaultScope._instance_dict.clear()


def load(path):
    cfg = Config.fromfile(path)
    adapt_config(cfg)  # no mixed precision on the CPU
    return cfg


def build(cfg):
    model = cfg.model.copy()
    model.setdefault('data_preprocessor', cfg.get('data_preprocessor'))
    return MODELS.build(model)


def batch(cfg, size=64, num=4):
    from mmpretrain.structures import DataSample
    generator = torch.Generator().manual_seed(0)
    classes = cfg.model.head.num_classes
    return dict(
        inputs=list(torch.randint(0, 256, (num, 3, size, size), generator=generator).byte()),
        data_samples=[DataSample().set_gt_label(i % classes) for i in range(num)])


@pytest.mark.filterwarnings('ignore:There is no GPU')
@pytest.mark.parametrize('path', names(FILES))
def test_builds(path):
    cfg = load(path)
    assert cfg.default_scope == 'mmpretrain'
    model = build(cfg)
    assert model.head.fc.out_features == cfg.data_preprocessor.num_classes
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    optimised = {id(p) for group in wrapper.optimizer.param_groups for p in group['params']}
    trainable = {id(p) for p in model.parameters() if p.requires_grad}
    assert trainable <= optimised
    gpus, per_gpu = map(int, re.search(r'_(\d+)xb(\d+)', path.stem).groups())
    assert cfg.train_dataloader.batch_size == per_gpu
    steps = cfg.optim_wrapper.get('accumulative_counts', 1)
    assert gpus * per_gpu * steps == cfg.auto_scale_lr.base_batch_size


@pytest.mark.filterwarnings('ignore:There is no GPU')
@pytest.mark.parametrize('path', names(one_of_each(lambda *parts: parts[:2])))
def test_training_step(path):
    cfg = load(path)
    torch.manual_seed(0)
    model = build(cfg).train()
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    data = model.data_preprocessor(batch(cfg), training=True)
    losses = model(**data, mode='loss')
    assert math.isfinite(losses['loss'].item())
    losses['loss'].backward()
    train_only = cfg.optim_wrapper.get('paramwise_cfg', {}).get('train_only')
    for name, parameter in model.named_parameters():
        frozen = train_only is not None and not any(part in name for part in train_only)
        assert parameter.requires_grad == (not frozen), name
        assert (parameter.grad is None) == frozen, name
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    wrapper.step()
    moved = [name for name, p in model.named_parameters() if not torch.equal(p, before[name])]
    assert len(moved) > len(before) / 4
    assert all(train_only is None or '.attn.' in name for name in moved)


@pytest.mark.parametrize('path', names(one_of_each(lambda *parts: parts[1:])))
def test_pipelines(path, tmp_path):
    cfg = Config.fromfile(path)
    image = np.random.default_rng(0).integers(0, 256, (75, 100, 3)).astype(np.uint8)
    mmcv.imwrite(image, str(tmp_path / 'image.jpg'))
    for loader in (cfg.train_dataloader, cfg.val_dataloader):
        results = dict(img_path=str(tmp_path / 'image.jpg'), gt_label=1)
        if loader.dataset.pipeline[0]['type'] != 'LoadImageFromFile':  # CIFAR, SVHN
            results.update(img=image, img_shape=image.shape[:2], ori_shape=image.shape[:2])
        for transform in loader.dataset.pipeline:
            results = TRANSFORMS.build(transform)(results)
        assert results['inputs'].shape == (3, 224, 224)
        assert results['inputs'].dtype == torch.uint8


def rates(cfg, epochs, epoch_length=10):
    """Learning rate, relative to the peak, at the start of every epoch and at the end."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    schedulers = []
    for settings in cfg.param_scheduler:
        settings = dict(settings)
        cls = PARAM_SCHEDULERS.get(settings.pop('type'))
        if 'eta_min' in settings:
            settings['eta_min'] /= cfg.optim_wrapper.optimizer.lr
        if settings.pop('convert_to_iter_based', False):
            schedulers.append(cls.build_iter_from_epoch(
                optimizer, **settings, epoch_length=epoch_length))
        else:
            schedulers.append(cls(optimizer, **settings))
    values = []
    for i in range(epochs * epoch_length):
        if i % epoch_length == 0:
            values.append(optimizer.param_groups[0]['lr'])
        optimizer.step()
        for scheduler in schedulers:
            if not scheduler.by_epoch or (i + 1) % epoch_length == 0:
                scheduler.step()
    return [*values, optimizer.param_groups[0]['lr']]


def test_finetune_schedule():
    cfg = Config.fromfile(CONFIGS / 'deit_bias' / 'deit-ti-bias_8xb128-ft_in1k.py')
    assert cfg.train_cfg.max_epochs == 40
    values = rates(cfg, 40)
    for epoch in range(30):
        expected = 0.01 + 0.99 * (1 + math.cos(math.pi * epoch / 30)) / 2
        assert values[epoch] == pytest.approx(expected, abs=0.003)
    assert all(v == pytest.approx(0.01, abs=1e-4) for v in values[30:])


def test_imagenet100_schedule():
    cfg = Config.fromfile(CONFIGS / 'deit_bias' / 'vit-s-bias_8xb128-300e_in100.py')
    values = rates(cfg, 300)
    assert values[0] == pytest.approx(0.033)
    assert values[1] == pytest.approx(0.033 + 0.967 / 5, abs=0.005)
    assert values[5] == pytest.approx(1.0, abs=1e-3)
    assert values[152] == pytest.approx((1 + math.cos(math.pi * 147 / 295)) / 2, abs=0.005)
    assert values[-1] == pytest.approx(0.0, abs=1e-4)


def test_layer_decay_of_attention_only_training():
    cfg = load(CONFIGS / 'deit_bias' / 'vit-l-mae-bias_4xb64-attn_in1k.py')
    cfg.model.backbone.arch = dict(embed_dim=32, depth=24, num_heads=2)
    cfg.model.head.in_channels = 32
    groups = build_optim_wrapper(build(cfg), cfg.optim_wrapper).optimizer.param_groups
    found = {group['layer_id']: group['lr'] for group in groups}
    assert found == pytest.approx({i: 1e-4 * 0.75**(25 - i) for i in range(1, 25)})


@pytest.mark.parametrize('stem,keep', [
    ('deit-ti-bias-0.9-0.1_8xb128-ft_in1k', (177, 162, 148, 134, 119, 105, 91, 77, 62, 48, 34, 19)),
    ('vit-ti-bias-0.3_8xb128-300e_in100', (59,) * 12),
])
def test_columns_kept_at_224(stem, keep):
    cfg = Config.fromfile(CONFIGS / 'deit_bias' / f'{stem}.py')
    model = build(cfg).eval()
    with torch.no_grad():
        layers = model.backbone.forward_intermediates(torch.rand(1, 3, 224, 224))
    assert tuple(int(layers[i]['keep'][0, 0].sum()) for i in range(12)) == keep


def test_counts_of_the_index():
    """Parameters and FLOPs of the index against the models and the closed formulas."""
    import yaml

    from mmext.analysis.flop_formulas import vit_macs, vit_size
    entries = yaml.safe_load((CONFIGS / 'deit_bias' / 'metafile.yml').read_text())['Models']
    counted = {}
    for entry in entries:
        cfg = Config.fromfile(CONFIGS.parent / entry['Config'])
        backbone = cfg.model.backbone
        if backbone.get('tau') is not None or backbone.type == 'mmext.StructuredPrunedViT':
            assert 'FLOPs' not in entry['Metadata']
            continue
        macs = vit_macs(
            (224, 224), *vit_size(backbone.arch), key_bias=backbone.get('key_bias', True),
            keep_ratio=backbone.get('keep_ratio'),
            qk_free_last=backbone.get('num_qk_free', 0), num_classes=cfg.model.head.num_classes)
        assert entry['Metadata']['FLOPs'] == 2 * macs
        shape = (backbone.arch, backbone.get('num_qk_free'), backbone.get('key_bias'),
                 cfg.model.head.num_classes)
        if shape not in counted and not LARGE.search(entry['Name']):
            counted[shape] = sum(p.numel() for p in build(cfg).parameters())
        assert entry['Metadata']['Parameters'] == counted.get(
            shape, entry['Metadata']['Parameters'])
