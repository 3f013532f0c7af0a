"""The small configs on real data build and take a step that reaches every weight."""

from pathlib import Path

import pytest
import torch
from detection_helpers import build, fake_batch, losses_of
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

import mmext.registry  # noqa: F401  (before mmpretrain)
from mmext.cli.launch import load_config

FOLDER = Path(__file__).resolve().parents[1] / 'configs' / 'evidence'
CONFIGS = sorted(FOLDER.glob('*.py'))
CLASSIFIERS = [path for path in CONFIGS if 'cifar10' in path.stem]
DETECTORS = [path for path in CONFIGS if path not in CLASSIFIERS]


pytestmark = pytest.mark.usefixtures('clean_scope')


def without_weights(path):
    cfg = Config.fromfile(path)
    cfg.model.backbone.init_cfg = None
    return cfg


@pytest.mark.parametrize('path', CLASSIFIERS, ids=lambda p: p.stem)
def test_classifier_takes_a_step(path):
    from mmpretrain.structures import DataSample
    cfg = without_weights(path)
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    model = MODELS.build(cfg.model).train()
    samples = [DataSample().set_gt_label(i) for i in range(4)]
    data = model.data_preprocessor(
        dict(inputs=[torch.randint(0, 256, (3, cfg.size, cfg.size)).byte() for _ in samples],
             data_samples=samples), training=True)
    loss = model(**data, mode='loss')['loss']
    loss.backward()
    assert torch.isfinite(loss)
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize('path', DETECTORS, ids=lambda p: p.stem)
def test_detector_takes_a_step(path):
    model = build(without_weights(path)).train()
    loss, parts = losses_of(model, fake_batch())
    loss.backward()
    assert torch.isfinite(loss) and parts['loss_mask'] > 0
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize('path', CONFIGS, ids=lambda p: p.stem)
def test_data_root_moves_every_path(path):
    cfg = load_config(str(path), {'data_root': '/elsewhere'}, None, 'none')
    for split in ('train', 'val', 'test'):
        dataset = cfg[f'{split}_dataloader'].dataset
        assert dataset.data_root.rstrip('/') == '/elsewhere'
        evaluator = cfg.get(f'{split}_evaluator') or {}
        assert evaluator.get('ann_file', '/elsewhere/').startswith('/elsewhere/')


def test_nets_differ_in_attention_alone():
    nets = {name: Config.fromfile(FOLDER / f'{name}-micro_cifar10-sample.py')
            for name in ('dmst', 'tost', 'vit')}
    attentions = [cfg.model.backbone.pop('attn') for cfg in nets.values()]
    assert [attn.get('type') for attn in attentions] == [
        'mmext.DMSA', 'mmext.TSSA', 'mmext.GatedMHSA']
    first, *others = [cfg.to_dict() for cfg in nets.values()]
    assert all(other == first for other in others)
