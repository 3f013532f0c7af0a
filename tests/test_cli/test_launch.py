"""Loading configs, fitting checkpoints: faults that were silent before they were found."""

import pytest
from mmengine.config import Config

import mmext.registry  # noqa: F401
from mmext.cli.config_check import ConfigError, check_config, check_data_paths
from mmext.cli.launch import build_model, load_config, set_visualizer
from mmext.models import BiasPrunedViT


def test_base_config_by_name_keeps_its_scope(tmp_path):
    """mmengine would look mmpretrain's types up in mmext."""
    path = tmp_path / 'mine.py'
    path.write_text("_base_ = 'mmext::quickstart/digits_cls.py'\n")
    cfg = load_config(str(path), None, None, 'none')
    check_config(cfg)
    assert '_scope_' not in cfg.train_dataloader.dataset
    assert load_config('mmext::quickstart/digits_cls.py', None, None, 'none').model == cfg.model


def test_data_root_moves_every_path_below_it(root_dir):
    name = root_dir / 'configs' / 'quickstart' / 'digits_mask_rcnn.py'
    cfg = load_config(str(name), dict(data_root='/elsewhere'), None, 'none')
    assert cfg.train_dataloader.dataset.data_root.rstrip('/') == '/elsewhere'
    assert cfg.test_evaluator.ann_file == '/elsewhere/annotations/instances_val.json'


@pytest.mark.parametrize('scope, name', [
    ('mmdet', 'DetLocalVisualizer'), ('mmpretrain', 'UniversalVisualizer')])
def test_configs_without_visualizer_can_draw(scope, name):
    cfg = Config(dict(default_scope=scope))
    set_visualizer(cfg)
    assert cfg.visualizer.type == name


def test_missing_data_root_is_named_and_nothing_is_downloaded(root_dir, tmp_path):
    for path in sorted((root_dir / 'configs' / '_base_' / 'datasets').glob('cifar*.py')):
        cfg = Config.fromfile(path)
        assert cfg.train_dataloader.dataset.download is False, path
        cfg.train_dataloader.dataset.data_root = str(tmp_path / 'none')
        with pytest.raises(ConfigError, match=r'data_root: .*none.* does not exist'):
            check_data_paths(cfg, ('train', ))


@pytest.mark.parametrize('depth, blocks', [(12, {2, 5, 8, 11}), (24, {5, 11, 17, 23}), (2, {1})])
def test_default_global_blocks_end_each_quarter(depth, blocks):
    model = BiasPrunedViT(
        dict(embed_dim=16, depth=depth, num_heads=2), img_size=32, with_cls_token=False,
        out_type='featmap', window_size=2)
    assert set(range(depth)) - model.windowed == blocks


def test_model_of_a_config(root_dir, tmp_path):
    """By itself: in eval mode, with the preprocessor from wherever the config has it."""
    path = tmp_path / 'config.py'
    path.write_text(
        "default_scope = 'mmpretrain'\n"
        'data_preprocessor = dict(mean=[1.] * 3, std=[2.] * 3, num_classes=10)\n'
        "model = dict(type='ImageClassifier', backbone=dict(type='mmext.DMST', arch='tiny-test'),\n"
        "             head=dict(type='LinearClsHead', num_classes=10, in_channels=32))\n")
    cfg = load_config(str(path), None, None, 'none')
    model = build_model(cfg)
    assert not model.training and model.data_preprocessor.std.flatten().tolist() == [2.] * 3
    assert 'data_preprocessor' not in cfg.model  # the config stays as it is
    for tool in (root_dir / 'tools').rglob('*.py'):
        assert 'MODELS.build' not in tool.read_text(), f'{tool.name} has build_model'
