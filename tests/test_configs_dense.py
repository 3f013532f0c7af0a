"""Every config of the dense tasks: builds at full size; small ones train, predict and are counted.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from detection_helpers import fake_batch, losses_of
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import init_default_scope
from mmengine.structures import PixelData

import mmext.registry  # noqa: F401
from mmext.analysis.flop_counter import count_by_part, parameters_of
from mmext.cli.config_check import check_config
from mmext.registry import MODELS

ROOT = Path(__file__).resolve().parents[1] / 'configs'
FOLDERS = ('panoptic_fpn', 'semantic_fpn', 'mask2former', 'dino', 'retinanet', 'lvis', 'cityscapes')
CONFIGS = sorted(str(path.relative_to(ROOT)) for folder in FOLDERS
                 for path in (ROOT / folder).glob('*.py'))
DIGITS = ('panoptic_fpn', 'semantic_fpn', 'dino', 'retinanet', 'mask2former')


def load(name):
    init_default_scope('mmdet')
    return Config.fromfile(ROOT / name)


@pytest.mark.parametrize('name', CONFIGS)
def test_builds_and_every_parameter_is_optimized(name):
    """The real model without memory; strides, classes and canvas fit each other."""
    cfg = load(name)
    check_config(cfg)
    with torch.device('meta'):
        model = MODELS.build(cfg.model)
        assert any(p.requires_grad for p in model.parameters())
        cfg.optim_wrapper.type = 'OptimWrapper'
        groups = build_optim_wrapper(model, cfg.optim_wrapper).optimizer.param_groups
    optimized = {id(p) for group in groups for p in group['params']}
    assert optimized == {id(p) for p in model.parameters() if p.requires_grad}

    strides = list(model.neck.strides)
    for part in ('rpn_head', 'bbox_head'):
        generator = cfg.model.get(part, {}).get('anchor_generator')
        assert generator is None or generator.strides == strides
    if cfg.model.type == 'Mask2Former':
        assert cfg.model.panoptic_head.strides == strides
    if cfg.model.type == 'DINO':
        assert model.num_feature_levels == len(strides)

    backbone = cfg.model.backbone
    assert backbone.get('keep_ratio') == ((.9, .1) if 'bias' in name else None)
    checkpoint = backbone.init_cfg.checkpoint
    if checkpoint.startswith('work_dirs/'):  # the last one of a config of ours
        _, run, file = checkpoint.split('/')
        [start] = (ROOT.glob(f'*/{run}.py'))
        assert file == f'epoch_{Config.fromfile(start).train_cfg.max_epochs}.pth'


@pytest.mark.parametrize('name', CONFIGS)
def test_heads_have_the_classes_of_the_data(name):
    from mmdet.registry import DATASETS
    cfg = load(name)
    for loader in (cfg.train_dataloader, cfg.val_dataloader):
        dataset = loader.dataset
        while 'dataset' in dataset:
            dataset = dataset.dataset
        meta = DATASETS.get(dataset.type).METAINFO
        classes = len(meta['classes'])
        model = cfg.model
        if model.type == 'mmext.SemanticSegmentor':
            assert model.semantic_head.num_stuff_classes == classes
        elif 'panoptic_fusion_head' in model:
            things = len(meta.get('thing_classes', meta['classes']))
            heads = [model[part] for part in ('panoptic_head', 'semantic_head',
                                              'panoptic_fusion_head') if part in model]
            assert {(head.num_things_classes, head.num_stuff_classes) for head in heads} == {
                (things, classes - things)}
            if 'roi_head' in model:
                assert model.roi_head.bbox_head.num_classes == things
                assert model.roi_head.mask_head.num_classes == things
        elif 'roi_head' in model:
            assert model.roi_head.bbox_head.num_classes == classes
            assert model.roi_head.mask_head.num_classes == classes
        else:
            assert model.bbox_head.num_classes == classes
    if cfg.model.type == 'Mask2Former':
        assert len(cfg.model.panoptic_head.loss_cls.class_weight) == classes + 1


# ---------------------------------------------------------------------------- the small ones


def digits_config(name):
    cfg = load(f'quickstart/digits_{name}.py')
    cfg.model.backbone.init_cfg = None
    return cfg


def digits_batch():
    batch = fake_batch(sizes=((128, 128), (128, 128)), objects=(3, 2))
    rng = np.random.default_rng(0)
    for sample in batch['data_samples']:
        sample.gt_instances.labels %= 10
        labels = np.repeat(rng.integers(10, 13, (1, 128, 1)), 128, 2)
        for mask, label in zip(sample.gt_instances.masks.masks, sample.gt_instances.labels,
                               strict=True):
            labels[:, mask == 1] = int(label)
        sample.gt_sem_seg = PixelData(sem_seg=torch.from_numpy(labels))
    return batch


@pytest.mark.parametrize('name', DIGITS)
def test_digits_step_prediction_and_flops(name):
    cfg = digits_config(name)
    torch.manual_seed(0)
    model = MODELS.build(cfg.model)
    model.init_weights()
    loss, _ = losses_of(model.train(), digits_batch())
    loss.backward()
    # DINO's label embedding of the denoising has one row more than there are classes
    unused = {name for name, p in model.named_parameters() if p.grad is None}
    assert unused == set(), unused
    assert all(p.grad.isfinite().all() for p in model.parameters())

    model.eval()
    results = model.test_step(digits_batch())
    for sample in results:
        if name in ('panoptic_fpn', 'mask2former'):
            ids = sample.pred_panoptic_seg.sem_seg
            assert ids.shape == (1, 128, 128) and (ids % 1000).max() <= 13
        elif name == 'semantic_fpn':
            assert sample.pred_sem_seg.sem_seg.shape == (1, 128, 128)
        else:
            assert sample.pred_instances.bboxes.shape[1] == 4

    counts = count_by_part(model, torch.rand(1, 3, 128, 128), 100, 20)
    parts = {
        'panoptic_fpn': ['backbone', 'neck', 'rpn_head', 'bbox_head', 'mask_head', 'semantic_head'],
        'semantic_fpn': ['backbone', 'neck', 'semantic_head'],
        'dino': ['backbone', 'neck', 'transformer', 'bbox_head'],
        'retinanet': ['backbone', 'neck', 'bbox_head'],
        'mask2former': ['backbone', 'neck', 'panoptic_head']}[name]
    assert list(counts) == parts and all(count.total > 0 for count in counts.values())
    assert sum(parameters_of(model, part) for part in parts) == sum(
        p.numel() for p in model.parameters())


def test_flops_of_the_semantic_head_are_those_of_its_convolutions():
    """By hand: 3 x 3 convolutions and upsampling over strides 4, 8, 16, then 1 x 1 logits."""
    cfg = digits_config('semantic_fpn')
    model = MODELS.build(cfg.model).eval()
    found = count_by_part(model, torch.rand(1, 3, 128, 128))['semantic_head'].total
    pixels = {4: 32 * 32, 8: 16 * 16, 16: 8 * 8}
    convs = pixels[4] + pixels[8] + pixels[16] + pixels[8]  # the last level is refined twice
    assert found == 2 * (convs * 9 * 64 * 64 + pixels[4] * 64 * 14)


@pytest.mark.parametrize('name', DIGITS)
def test_digits_schedules_end_with_the_training(name):
    cfg = digits_config(name)
    iters = cfg.train_cfg.max_iters
    assert cfg.param_scheduler[1].T_max == iters
    assert iters % cfg.train_cfg.val_interval == iters % cfg.default_hooks.checkpoint.interval == 0
