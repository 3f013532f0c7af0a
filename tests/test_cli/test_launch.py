"""Loading configs, fitting checkpoints: faults that were silent before they were found."""

import pytest
from mmengine.config import Config

import mmext.registry  # noqa: F401
from mmext.cli.config_check import (
    ConfigError,
    check_config,
    check_data_paths,
    check_tta,
    mend_workers,
    splits_of,
)
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


# what a command line and a config may leave unsaid

DETECTOR = 'mmext::quickstart/digits_mask_rcnn.py'


def read(path, **options):
    return load_config(str(path), {key.replace('__', '.'): v for key, v in options.items()}, None,
                       'none')


@pytest.mark.parametrize('options, message', [
    (dict(optim_wrapper__optimizer__lr='1e-4x'),
     r"optim_wrapper\.optimizer\.lr='1e-4x': '1e-4x' is not a number; the config has 0\.001"),
    (dict(train_dataloader__num_workers='two'), 'not a number'),
    (dict(model__roi_head__bbox_head__reg_class_agnostic='yes'), 'not true or false'),
    (dict(param_scheduler__0__end='a'), r'param_scheduler\.0\.end'),
    (dict(iters=5), 'iters=5 has no effect: iters is a variable of the config file'),
    (dict(optim_wraper__optimizer__lr=1), "Did you mean 'optim_wrapper'"),
])
def test_options_that_do_nothing_or_are_no_numbers(options, message):
    with pytest.raises(ConfigError, match=message):
        read(DETECTOR, **options)


def test_options_that_do_something():
    cfg = read(DETECTOR, optim_wrapper__optimizer__lr=1e-4, load_from='x.pth', model__backbone=None,
               custom_hooks=[], train_cfg__max_iters=3)
    assert cfg.optim_wrapper.optimizer.lr == 1e-4 and cfg.train_cfg.max_iters == 3


def test_data_root_of_a_config_that_writes_its_paths_out(tmp_path):
    """As docs/training.md has it: its folder is not the variable that it inherits."""
    path = tmp_path / 'mine.py'
    mine = ("_base_ = 'mmext::quickstart/digits_mask_rcnn.py'\n"
            "train_dataloader = dict(dataset=dict(data_root='data/mine/', ann_file='t.json'))\n"
            "val_dataloader = dict(dataset=dict(data_root='data/{}/', ann_file='v.json'))\n"
            'test_dataloader = val_dataloader\n'
            "val_evaluator = dict(ann_file='data/mine/v.json')\n"
            'test_evaluator = val_evaluator\n')
    path.write_text(mine.format('mine'))
    cfg = read(path, data_root='/new')
    assert {cfg[f'{split}_dataloader'].dataset.data_root.rstrip('/')
            for split in ('train', 'val', 'test')} == {'/new'}
    assert cfg.val_evaluator.ann_file == '/new/v.json'
    path.write_text(mine.format('other'))
    with pytest.raises(ConfigError, match=r"several folders \(train_.*data_root='data/mine', val_"):
        read(path, data_root='/new')


def test_data_root_that_nothing_can_follow(tmp_path):
    path = tmp_path / 'mine.py'
    path.write_text("default_scope = 'mmdet'\n"
                    "train_dataloader = dict(dataset=dict(type='X', ann_file='a.json'))\n")
    with pytest.raises(ConfigError, match=r'does nothing: train_dataloader\.dataset\.data_root is'):
        read(path, data_root='/new')


def test_splits_are_those_that_run():
    """``val_cfg = dict()`` is false, but the run validates."""
    cfg = read(DETECTOR)
    assert not cfg.val_cfg and splits_of(cfg, 'train', 'val') == ('train', 'val')
    cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    assert splits_of(cfg, 'train', 'val') == ('train',)
    cfg.val_dataloader = cfg.test_dataloader
    with pytest.raises(ConfigError, match='has val_dataloader but no val_cfg and val_evaluator'):
        splits_of(cfg, 'train', 'val')


def test_a_forgotten_evaluator():
    cfg = read(DETECTOR)
    cfg.pop('val_evaluator')
    with pytest.raises(ConfigError, match='has val_dataloader and val_cfg but no val_evaluator'):
        splits_of(cfg, 'train', 'val')


def test_no_workers_that_persist():
    from torch.utils.data import DataLoader
    cfg = read('mmext::vitdet/mask-rcnn_deit-s_sfp_lsj-100e_coco.py',
               train_dataloader__num_workers=0)
    assert cfg.train_dataloader.persistent_workers
    with pytest.raises(ValueError, match='persistent_workers'):
        DataLoader([0], num_workers=0, persistent_workers=True)
    mend_workers(cfg)
    assert not cfg.train_dataloader.persistent_workers and cfg.val_dataloader.persistent_workers


def test_tta_of_masks_is_refused():
    cfg = read(DETECTOR)
    with pytest.raises(ConfigError, match=r'merges boxes only.*test_evaluator\.metric=bbox'):
        check_tta(cfg)
    check_tta(read(DETECTOR, test_evaluator__metric='bbox'))


def test_the_quickstart_detector_is_a_base_for_other_images(tmp_path):
    """Its test pipeline at another size than the file's, and something to draw with."""
    import numpy as np
    from mmengine.dataset import Compose
    from mmengine.registry import VISUALIZERS, DefaultScope
    from PIL import Image
    path = tmp_path / 'mine.py'
    path.write_text(f'_base_ = {DETECTOR!r}\n')
    cfg = read(path)
    Image.fromarray(np.zeros((50, 100, 3), np.uint8)).save(tmp_path / 'x.png')
    square = [[10., 10., 30., 10., 30., 30., 10., 30.]]
    with DefaultScope.overwrite_default_scope('mmdet'):
        sample = Compose(cfg.test_dataloader.dataset.pipeline)(dict(
            img_path=str(tmp_path / 'x.png'), img_id=0, height=50, width=100, instances=[
                dict(bbox=[10, 10, 30, 30], bbox_label=1, ignore_flag=0, mask=square)]))
        drawn_by = VISUALIZERS.build(dict(cfg.visualizer, name='other'))
        assert type(drawn_by).__name__ == 'DetLocalVisualizer'
    truth = sample['data_samples'].gt_instances
    assert sample['inputs'].shape[1:] == (64, 128)
    assert truth.masks.masks.shape == (1, 50, 100)  # as --show-dir draws them: on the file
    assert truth.bboxes.tensor.tolist() == [[10, 10, 30, 30]]


def test_a_base_by_name_works_in_every_tool(root_dir, tmp_path, monkeypatch, capsys):
    """All read configs with load_config; mmdet's own tools get what it understood."""
    import importlib.util
    import json
    import runpy
    import sys

    from PIL import Image
    for path in (root_dir / 'tools').rglob('*.py'):
        if path.name != 'summarize.py':  # reads what a run wrote down
            assert 'Config.fromfile' not in path.read_text(), path.name

    def load(name):
        spec = importlib.util.spec_from_file_location('tool', root_dir / 'tools' / name)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    config = tmp_path / 'mine.py'
    config.write_text(f'_base_ = {DETECTOR!r}\n')
    seen = []

    def run_path(path, run_name):
        cfg = Config.fromfile(sys.argv[1])  # as mmdet's browse_dataset does
        check_config(cfg)
        seen.append((sys.argv[2:], '_scope_' in str(cfg._cfg_dict)))

    monkeypatch.setattr(runpy, 'run_path', run_path)
    load('analysis_tools/openmmlab.py').main(['browse_dataset', str(config), '--not-show'])
    assert seen == [(['--not-show'], False)]

    root = tmp_path / 'data'
    (root / 'annotations').mkdir(parents=True)
    for split in ('train', 'val'):
        (root / split).mkdir()
        Image.new('RGB', (20, 30)).save(root / split / 'x.png')
        square = [[2, 2, 12, 2, 12, 12, 2, 12]]
        (root / 'annotations' / f'instances_{split}.json').write_text(json.dumps(dict(
            images=[dict(id=1, file_name='x.png', width=20, height=30)],
            categories=[dict(id=i, name=str(i)) for i in range(10)],
            annotations=[dict(id=1, image_id=1, category_id=3, bbox=[2, 2, 10, 10], area=100,
                              iscrowd=0, segmentation=square)])))
    monkeypatch.setattr(sys, 'argv', ['check_coco.py', '--config', str(config), '--cfg-options',
                                      f'data_root={root}'])
    with pytest.raises(SystemExit) as end:
        load('dataset_converters/check_coco.py').main()
    assert end.value.code == 0
    assert capsys.readouterr().out.count('instances_train.json') >= 1


def test_the_evaluator_of_a_base_is_not_forgotten(tmp_path):
    """A config with data of its own that inherits COCO's evaluator: caught where COCO exists."""
    import json

    from mmext.cli.annotation_check import AnnotationError, check_dataset_cfg
    for name, number in (('mine', 1), ('coco', 3)):
        (tmp_path / f'{name}.json').write_text(json.dumps(dict(
            images=[dict(id=i, file_name=f'{i}.png', width=20, height=30) for i in range(number)],
            categories=[dict(id=i, name=str(i)) for i in range(10)],
            annotations=[dict(id=1, image_id=0, category_id=3, bbox=[2, 2, 10, 10], area=100,
                              iscrowd=0, segmentation=[[2, 2, 12, 2, 12, 12, 2, 12]])])))
    from PIL import Image
    Image.new('RGB', (20, 30)).save(tmp_path / '0.png')
    cfg = read(DETECTOR, val_dataloader__dataset__data_root=str(tmp_path),
               val_dataloader__dataset__ann_file='mine.json',
               val_dataloader__dataset__data_prefix__img='',
               val_evaluator__ann_file=str(tmp_path / 'coco.json'))
    with pytest.raises(AnnotationError, match=r'val_evaluator\.ann_file=.*coco.json. has 2 images '
                       r'that the data set .* lacks.*set val_evaluator\.ann_file to'):
        check_dataset_cfg(cfg, ('val',))
    cfg.val_evaluator.ann_file = str(tmp_path / 'mine.json')
    check_dataset_cfg(cfg, ('val',))
