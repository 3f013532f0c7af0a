"""The quickstart's two configs fit together: names, weights, positions, gradients."""

import mmext.registry  # noqa: F401, I001  (before mmdet)
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from timm.layers import resample_abs_pos_embed

NAMES = ('digits_cls', 'digits_mask_rcnn')


@pytest.fixture
def configs(root_dir):
    return {name: Config.fromfile(root_dir / 'configs' / 'quickstart' / f'{name}.py')
            for name in NAMES}


def build(cfg):
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        return MODELS.build(cfg.model)


def test_linear_layers_of_the_classifier_start_as_xavier(configs):
    """With a standard deviation of .02 its loss may not fall for many epochs."""
    backbone = build(configs['digits_cls']).backbone
    backbone.init_weights()
    layers = [layer for layer in backbone.modules() if isinstance(layer, torch.nn.Linear)]
    assert len(layers) > 10
    for layer in layers:
        bound = (6 / (layer.in_features + layer.out_features)) ** .5
        assert .9 * bound < layer.weight.abs().max() <= bound


def test_detector_starts_from_the_backbone_of_the_classifier(configs, tmp_path):
    cls, det = configs.values()
    assert det.model.backbone.init_cfg.checkpoint == (
        f'work_dirs/digits_cls/epoch_{cls.train_cfg.max_epochs}.pth')
    classifier = build(cls)
    classifier.init_weights()
    for parameter in classifier.parameters():
        torch.nn.init.normal_(parameter)
    torch.save({'state_dict': classifier.state_dict()}, tmp_path / 'cls.pth')
    det.model.backbone.init_cfg.checkpoint = str(tmp_path / 'cls.pth')
    detector = build(det)
    detector.init_weights()
    weights = classifier.backbone.state_dict()
    loaded = detector.backbone.state_dict()
    assert weights.keys() == loaded.keys()
    for name in weights.keys() - {'pos_embed'}:
        assert torch.equal(weights[name], loaded[name]), name
    grid = [size // 8 for size in (cls.model.backbone.img_size, det.model.backbone.img_size)]
    torch.testing.assert_close(loaded['pos_embed'], resample_abs_pos_embed(
        weights['pos_embed'], (grid[1],) * 2, (grid[0],) * 2, num_prefix_tokens=0,
        antialias=False))


@pytest.mark.parametrize('name', NAMES)
def test_pruning_is_on_and_small(configs, name):
    model = build(configs[name]).eval()
    assert configs[name].model.backbone.keep_ratio == (.9, .1)
    backbone = model.backbone
    x = torch.randn(1, 3, *[configs[name].model.backbone.img_size] * 2)
    pruned = backbone(x)[0]
    backbone.set_keep_ratio(None)
    assert not torch.allclose(backbone(x)[0], pruned)
    backbone.set_keep_ratio((.9, .1))
    assert torch.equal(backbone(x)[0], pruned)
    assert sum(p.numel() for p in model.parameters()) < 2e6


def test_schedules_end_with_the_training(configs):
    cls, det = configs.values()
    assert det.param_scheduler[1].T_max == det.train_cfg.max_iters
    # validation and checkpoints fall on the last iteration
    assert det.train_cfg.max_iters % det.train_cfg.val_interval == 0
    assert det.train_cfg.max_iters % det.default_hooks.checkpoint.interval == 0
    assert cls.train_cfg.max_epochs % cls.train_cfg.val_interval == 0
    # 80 % of 1,797 digits, 3 renderings each
    iterations = -(-1438 * 3 // cls.train_dataloader.batch_size)
    assert cls.param_scheduler[1].T_max == cls.train_cfg.max_epochs * iterations
