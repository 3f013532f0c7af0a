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
from mmengine.registry import MODELS, PARAM_SCHEDULERS, TRANSFORMS

import mmext.registry  # noqa: F401  (before mmpretrain)
from mmext.compat.cpu import adapt_config

CONFIGS = Path(__file__).resolve().parents[1] / 'configs'
FILES = [path for folder in ('deit_bias', 'dmst', 'tost')
         for path in sorted((CONFIGS / folder).rglob('*.py'))]
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


pytestmark = [pytest.mark.usefixtures('mmpretrain_scope'),
              pytest.mark.filterwarnings('ignore:There is no GPU')]


def load(path):
    cfg = Config.fromfile(path)
    adapt_config(cfg)  # no mixed precision on the CPU
    return cfg


@pytest.fixture(scope='module')
def structured_file(tmp_path_factory):
    """A DeiT-S narrowed to the width of configs/deit_bias/structured, head included."""
    import timm

    from mmext.checkpoints.structured import save_pruned
    path = tmp_path_factory.mktemp('structured') / 'deit-s.pth'
    model = timm.create_model('deit_small_patch16_224', embed_dim=268, num_heads=4)
    save_pruned(path, model, 'deit_small_patch16_224', [4] * 12)
    return str(path)


@pytest.fixture
def load_buildable(structured_file):
    """``load``, with a file in place of the one that structured pruning writes."""
    def load_with_file(path):
        cfg = load(path)
        if 'checkpoint' in cfg.model.backbone:
            cfg.model.backbone.checkpoint = structured_file
        return cfg
    return load_with_file


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


@pytest.mark.parametrize('path', names(FILES))
def test_builds(path, load_buildable):
    cfg = load_buildable(path)
    assert cfg.default_scope == 'mmpretrain'
    model = build(cfg)
    assert model.head.fc.out_features == cfg.data_preprocessor.num_classes
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    optimized = {id(p) for group in wrapper.optimizer.param_groups for p in group['params']}
    trainable = {id(p) for p in model.parameters() if p.requires_grad}
    assert trainable <= optimized
    gpus, per_gpu = map(int, re.search(r'_(\d+)xb(\d+)', path.stem).groups())
    assert cfg.train_dataloader.batch_size == per_gpu
    steps = cfg.optim_wrapper.get('accumulative_counts', 1)
    assert gpus * per_gpu * steps == cfg.auto_scale_lr.base_batch_size


@pytest.mark.parametrize('path', names(one_of_each(lambda *parts: parts[:2])))
def test_training_step(path, load_buildable):
    cfg = load_buildable(path)
    torch.manual_seed(0)
    model = build(cfg).train()
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    size = 224 if 'structured' in path.parts else 64  # timm's model takes the one it is made for
    data = model.data_preprocessor(batch(cfg, size), training=True)
    losses = model(**data, mode='loss')
    assert math.isfinite(losses['loss'].item())
    losses['loss'].backward()
    for name, parameter in model.named_parameters():
        trains = '-attn' not in path.stem or '.attn.' in name
        assert parameter.requires_grad == trains, name
        assert (parameter.grad is not None) == trains, name
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    wrapper.step()
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert len(moved) > len(before) / 4
    assert moved <= {name for name, p in model.named_parameters() if p.requires_grad}


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


def test_attention_only_training_in_parallel(tmp_path):
    """Frozen before the model is wrapped: DDP waits for no gradient that never comes."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    cfg = load(CONFIGS / 'deit_bias' / 'vit-l-mae-bias-0.9-0.1_4xb64-attn_in1k.py')
    assert 'find_unused_parameters' not in cfg
    cfg.model.backbone.arch = dict(embed_dim=32, depth=2, num_heads=2)
    cfg.model.head.in_channels = 32
    model = build(cfg).train()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    data = model.data_preprocessor(batch(cfg, 32), training=True)
    dist.init_process_group('gloo', init_method=f'file://{tmp_path}/meet', rank=0, world_size=1)
    try:
        parallel = DistributedDataParallel(model)
        wrapper = build_optim_wrapper(model, dict(cfg.optim_wrapper, accumulative_counts=1))
        for _ in range(2):  # the second forward finds out about missing gradients
            wrapper.update_params(parallel(**data, mode='loss')['loss'])
    finally:
        dist.destroy_process_group()
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {name for name in before if '.attn.' in name}


@pytest.mark.parametrize('stem,keep', [
    ('deit-ti-bias-0.9-0.1_8xb128-ft_in1k', (177, 162, 148, 134, 119, 105, 91, 77, 62, 48, 34, 19)),
    ('vit-s-bias-0.3_8xb128-300e_in100', (59,) * 12),
])
def test_columns_kept_at_224(stem, keep):
    cfg = Config.fromfile(CONFIGS / 'deit_bias' / f'{stem}.py')
    model = build(cfg).eval()
    with torch.no_grad():
        layers = model.backbone.forward_intermediates(torch.rand(1, 3, 224, 224))
    assert tuple(int(layers[i]['kept'][0, 0].sum()) for i in range(12)) == keep


def test_counts_of_the_index():
    """Parameters and FLOPs of the index against the models and the closed formulas."""
    import yaml

    from mmext.analysis.flop_formulas import vit_macs, vit_size
    entries = yaml.safe_load((CONFIGS / 'deit_bias' / 'metafile.yml').read_text())['Models']
    checked = []
    for entry in entries:
        cfg = Config.fromfile(CONFIGS.parent / entry['Config'])
        backbone = cfg.model.backbone
        if backbone.type == 'mmext.StructuredPrunedViT':  # depends on the weights that are pruned
            assert not {'FLOPs', 'Parameters'} & set(entry['Metadata'])
            continue
        with torch.device('meta'):
            parameters = sum(p.numel() for p in build(cfg).parameters())
        assert entry['Metadata']['Parameters'] == parameters, entry['Name']
        if backbone.get('tau') is not None:  # depends on the image
            assert 'FLOPs' not in entry['Metadata']
            continue
        macs = vit_macs(
            (224, 224), *vit_size(backbone.arch), key_bias=backbone.get('key_bias', True),
            keep_ratio=backbone.get('keep_ratio'),
            qk_free_last=backbone.get('num_qk_free', 0), num_classes=cfg.model.head.num_classes)
        assert entry['Metadata']['FLOPs'] == 2 * macs, entry['Name']
        checked.append(entry['Name'])
    assert len(checked) > 20
