"""Every config of configs/dmst and configs/tost: built, its recipe, its pipelines, one step."""

from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.optim import build_optim_wrapper
from PIL import Image

from mmext.registry import MODELS

ROOT = Path(__file__).resolve().parents[1] / 'configs'
CONFIGS = sorted(path for name in ('dmst', 'tost') for path in (ROOT / name).rglob('*.py'))
CLASSES = dict(in1k=1000, cifar10=10, cifar100=100, pets=37, food101=101, svhn=10)


pytestmark = pytest.mark.usefixtures('mmpretrain_scope')


def build(cfg, **backbone):
    cfg = cfg.copy()
    cfg.model.data_preprocessor = cfg.data_preprocessor
    cfg.model.backbone.update(backbone)
    return MODELS.build(cfg.model)


@pytest.mark.parametrize('path', CONFIGS, ids=lambda p: p.stem)
def test_builds_what_its_name_says(path):
    cfg = Config.fromfile(path)
    algorithm, setting, dataset = path.stem.split('_')
    with torch.device('meta'):
        model = build(cfg)
    family, size, *variant = algorithm.split('-')
    backbone = model.backbone
    assert type(backbone).__name__.lower() == family
    assert backbone.embed_dim == {'t': 192, 's': 384, 'm': 512}[size] == model.head.in_channels
    assert model.head.num_classes == cfg.data_preprocessor.num_classes == CLASSES[dataset]
    assert cfg.model.backbone.attn.type == {'dmst': 'mmext.DMSA', 'tost': 'mmext.TSSA'}[family]
    assert type(backbone.blocks[0].attn).__name__ == {'dmst': 'DMSA', 'tost': 'TSSA'}[family]
    if family == 'dmst':
        options = backbone.blocks[0].attn.options
        want = variant[0] if variant else None
        assert options['sparse_dim'] == {'tpusa': 'token', 'tpsusa': 'both'}.get(want, 'head')
        assert options['gate_act'] == (want if want in ('sigmoid', 'relu', 'gelu') else 'st')
        assert options['pi_norm'] == ('raw' if want == 'raw' else 'softmax')

    gpus, batch = (int(n) for n in setting.split('-')[0].split('xb'))
    assert cfg.train_dataloader.batch_size == batch
    assert cfg.auto_scale_lr.base_batch_size == gpus * batch
    assert cfg.train_cfg.max_epochs == int(setting.split('-')[-1].rstrip('e'))
    assert ('init_cfg' in cfg.model.backbone) == ('ft' in setting.split('-'))


@pytest.mark.parametrize('path', CONFIGS, ids=lambda p: p.stem)
def test_recipe(path):
    """Spec A.9, read off the finished config rather than its bases."""
    cfg = Config.fromfile(path)
    optimizer = cfg.optim_wrapper.optimizer
    assert tuple(optimizer.betas) == (.9, .999) and cfg.optim_wrapper.type == 'AmpOptimWrapper'
    assert 'clip_grad' not in cfg.optim_wrapper
    if path.stem.endswith('in1k'):
        assert optimizer.lr == pytest.approx(5e-4 * cfg.auto_scale_lr.base_batch_size / 512)
        assert optimizer.weight_decay == .05
        augments = {a.type: a.alpha for a in cfg.model.train_cfg.augments}
        assert augments == dict(Mixup=.8, CutMix=1.)
        assert cfg.model.head.loss.label_smooth_val == .1
        average, = cfg.custom_hooks
        assert average.momentum == pytest.approx(1 - .99996)
        assert cfg.train_dataloader.sampler == dict(type='RepeatAugSampler', num_repeats=3)
        assert cfg.val_dataloader.dataset.pipeline[1].scale == 224
        assert cfg.test_dataloader.dataset.pipeline[1].scale == 224
        drop = {'t': 0., 's': .05, 'm': .15}[path.stem.split('_')[0].split('-')[1]]
        assert cfg.model.backbone.drop_path_rate == drop
    else:
        assert 'train_cfg' not in cfg.model and 'drop_path_rate' not in cfg.model.backbone
        if '-ft-' in path.stem:
            assert (optimizer.lr, optimizer.weight_decay) == (1e-4, .01)
            assert cfg.param_scheduler == dict(
                type='CosineAnnealingLR', T_max=200, by_epoch=True)


@pytest.mark.parametrize('name, no_decay', [
    ('dmst/dmst-t_8xb128-400e_in1k.py', True), ('tost/tost-t_1xb256-ft-200e_cifar10.py', False)])
def test_weight_decay(name, no_decay):
    cfg = Config.fromfile(ROOT / name)
    model = build(cfg, arch='tiny-test', init_cfg=None)
    cfg.optim_wrapper.type = 'OptimWrapper'
    groups = build_optim_wrapper(model, cfg.optim_wrapper).optimizer.param_groups
    decays = {id(p): group['weight_decay'] for group in groups for p in group['params']}
    params = dict(model.named_parameters())
    assert len(decays) == len(params)
    for key in ('backbone.cls_token', 'backbone.blocks.0.attn.temp', 'backbone.norm.weight'):
        assert (decays[id(params[key])] == 0) == no_decay
    assert decays[id(params['backbone.blocks.0.attn.qkv.weight'])] > 0


SMALLEST = [path for path in CONFIGS if path.stem.split('_')[0].split('-')[1] == 't'
            and path.stem.split('_')[-1] in ('cifar10', 'in1k')]


@pytest.mark.parametrize('path', SMALLEST, ids=lambda p: p.stem)
def test_one_step(path):
    """Forward and backward of each kind, small: every trainable parameter gets a gradient."""
    from mmpretrain.structures import DataSample
    torch.manual_seed(0)
    cfg = Config.fromfile(path)
    cfg.model.head.in_channels = 32
    model = build(cfg, arch='tiny-test', init_cfg=None).train()
    data = dict(inputs=[torch.randint(0, 256, (3, 32, 32), dtype=torch.uint8) for _ in range(4)],
                data_samples=[DataSample().set_gt_label(i) for i in range(4)])
    loss = model(**model.data_preprocessor(data, True), mode='loss')['loss']
    loss.backward()
    assert loss.isfinite()
    for name, p in model.named_parameters():
        assert p.grad is not None and p.grad.isfinite().all(), name


@pytest.mark.parametrize('dataset', ['cifar10', 'cifar100', 'pets', 'food101', 'svhn', 'tost'])
def test_pipelines_run(dataset, tmp_path):
    """Both pipelines on an image; the test one equals torchvision's steps, colors included."""
    from torchvision import transforms
    name = 'imagenet_224_tost' if dataset == 'tost' else f'{dataset}_224'
    cfg = Config.fromfile(ROOT / '_base_' / 'datasets' / f'{name}.py')
    image = np.random.default_rng(0).integers(0, 256, (40, 52, 3), dtype=np.uint8)
    Image.fromarray(image).save(tmp_path / 'a.png')
    reads = cfg.test_pipeline[0].type == 'LoadImageFromFile'
    sample = dict(img_path=str(tmp_path / 'a.png')) if reads else dict(img=image)
    train = Compose(cfg.train_pipeline)(dict(sample, gt_label=1))
    test = Compose(cfg.test_pipeline)(dict(sample, gt_label=1))
    assert train['inputs'].shape == test['inputs'].shape == (3, 224, 224)
    if dataset != 'tost':
        rgb = test['inputs'] if not cfg.data_preprocessor.to_rgb else test['inputs'].flip(0)
        expected = transforms.Resize((224, 224))(Image.fromarray(image))
        assert torch.equal(rgb, torch.from_numpy(np.asarray(expected).copy()).permute(2, 0, 1))


def test_every_data_set_and_ablation_has_a_config():
    stems = {path.stem for path in CONFIGS}
    for family in ('dmst', 'tost'):
        for size in 'tsm':
            assert f'{family}-{size}_8xb128-400e_in1k' in stems
        for size in 'ts':
            for dataset in ('cifar10', 'cifar100', 'pets', 'food101', 'svhn'):
                assert f'{family}-{size}_1xb256-ft-200e_{dataset}' in stems
    for dataset in ('cifar10', 'svhn'):
        for variant in ('', '-tpusa', '-tpsusa'):
            assert f'dmst-t{variant}_1xb256-200e_{dataset}' in stems
    for act in ('sigmoid', 'relu', 'gelu'):
        assert f'dmst-t-{act}_1xb256-200e_cifar10' in stems


@pytest.mark.parametrize(
    'path', [path for path in CONFIGS if '-ft-' in path.stem], ids=lambda p: p.stem)
def test_pretrained_checkpoint_comes_from_the_pretraining_config(path):
    cfg = Config.fromfile(path)
    source = Path(cfg.checkpoint).parent.name
    assert source == f"{path.stem.split('_')[0]}_8xb128-400e_in1k"
    pretraining = Config.fromfile(path.parent / f'{source}.py')
    assert Path(cfg.checkpoint).name == f'epoch_{pretraining.train_cfg.max_epochs}.pth'
    assert cfg.model.backbone.init_cfg == dict(type='Pretrained', checkpoint=cfg.checkpoint)
