"""Misspelt types and arguments, missing files: found before anything is built."""

import os.path as osp

import mmdet
import mmpretrain
import pytest
from mmengine.config import Config

import mmext.registry  # noqa: F401
from mmext.cli.config_check import ConfigError, check_checkpoints, check_config, check_data_paths

PACKAGES = dict(mmdet=mmdet, mmpretrain=mmpretrain)


def load(package, name):
    path = osp.join(osp.dirname(PACKAGES[package].__file__), '.mim', 'configs', name)
    return Config.fromfile(path)


@pytest.mark.parametrize('package, name', [
    ('mmdet', 'mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py'),
    ('mmdet', 'retinanet/retinanet_r50_fpn_8xb8-amp-lsj-200e_coco.py'),
    ('mmdet', 'detr/detr_r50_8xb2-150e_coco.py'),
    ('mmdet', 'swin/mask-rcnn_swin-t-p4-w7_fpn_amp-ms-crop-3x_coco.py'),
    ('mmpretrain', 'deit/deit-small_4xb256_in1k.py'),
    ('mmpretrain', 'vision_transformer/vit-base-p16_32xb128-mae_in1k.py'),
    ('mmpretrain', 'vision_transformer/vit-base-p16_8xb64-lora_in1k-384px.py'),
    ('mmpretrain', 'resnet/resnet50_8xb32-cutmix_in1k.py'),
])
def test_sound_configs_pass(package, name):
    check_config(load(package, name))


@pytest.mark.parametrize('key, value, message', [
    ('model.type', 'MaskRCN', r"model\.type = 'MaskRCN'.*Did you mean 'MaskRCNN'"),
    ('model.backbone.type', 'mmext.BiasPrundViT',
     r"backbone\.type = 'mmext\.BiasPrundViT'.*Did you mean 'mmext\.BiasPrunedViT'"),
    ('model.backbone.num_stags', 4, r"backbone.*no argument 'num_stags'.*'num_stages'"),
    ('train_dataloader.dataset.ann_fle', 'x', r"dataset .*no argument 'ann_fle'.*'ann_file'"),
    ('default_hooks.checkpoint.intervall', 2, r"checkpoint .*'intervall'.*'interval'"),
])
def test_typing_errors_are_named(key, value, message):
    cfg = load('mmdet', 'mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py')
    cfg.merge_from_dict({key: value})
    with pytest.raises(ConfigError, match=message):
        check_config(cfg)


@pytest.mark.parametrize('key, message', [
    ('state_dict_cfgs', r"strategy \(mmext\.FSDPStrategy\).*'state_dict_cfgs'.*'state_dict_cfg'"),
    ('model_wrapper.use_orig_param', r'strategy\.model_wrapper .*use_orig_params'),
    ('model_wrapper.auto_wrap_policy.min_num_parms', r'auto_wrap_policy .*min_num_params')])
def test_typing_errors_in_a_strategy(root_dir, key, message):
    for name in ('fsdp', 'deepspeed'):
        cfg = Config.fromfile(root_dir / 'configs' / '_base_' / 'runtime' / f'{name}.py')
        check_config(cfg)
    cfg = Config.fromfile(root_dir / 'configs' / '_base_' / 'runtime' / 'fsdp.py')
    cfg.merge_from_dict({f'strategy.{key}': 1})
    with pytest.raises(ConfigError, match=message):
        check_config(cfg)


def test_missing_annotations_and_images(tmp_path):
    cfg = load('mmdet', 'mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py')
    cfg.train_dataloader.dataset.data_root = str(tmp_path)
    with pytest.raises(ConfigError, match=r'train_dataloader\.dataset\.ann_file.*does not exist'):
        check_data_paths(cfg, ('train', ))
    (tmp_path / 'annotations').mkdir()
    (tmp_path / 'annotations' / 'instances_train2017.json').touch()
    with pytest.raises(ConfigError, match=r"data_prefix\.img: the image folder '.*train2017"):
        check_data_paths(cfg, ('train', ))
    (tmp_path / 'train2017').mkdir()
    check_data_paths(cfg, ('train', ))


def test_missing_folder_of_a_classifier(tmp_path):
    cfg = Config(dict(train_dataloader=dict(dataset=dict(
        type='CustomDataset', data_root=str(tmp_path), data_prefix='train'))))
    with pytest.raises(ConfigError, match=r"dataset\.data_prefix: the image folder '.*/train'"):
        check_data_paths(cfg, ('train', ))
    (tmp_path / 'train').mkdir()
    check_data_paths(cfg, ('train', ))


def test_missing_checkpoints(tmp_path):
    cfg = Config(dict(model=dict(backbone=dict(
        type='X', init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'none.pth'))))))
    with pytest.raises(ConfigError, match=r"backbone\.init_cfg\.checkpoint = '.*none\.pth'"):
        check_checkpoints(cfg)
    cfg.model.backbone.init_cfg.checkpoint = None
    with pytest.raises(ConfigError, match='is empty'):
        check_checkpoints(cfg)
    cfg.model.backbone.init_cfg.checkpoint = 'https://example.org/x.pth'
    check_checkpoints(cfg)
    cfg.load_from = str(tmp_path / 'gone.pth')
    with pytest.raises(ConfigError, match=r"load_from = '.*gone\.pth' does not exist"):
        check_checkpoints(cfg)
