"""Every detection config: builds at full size, trains a step and predicts at small size."""

import re

import pytest
import torch
from detection_helpers import (
    CONFIGS,
    PAIR,
    build,
    fake_batch,
    load,
    losses_of,
    small_config,
)
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper

from mmext.layers import BiasedAttention
from mmext.registry import MODELS

DEPTH = {'vit-large': 24}
NO_DECAY = re.compile(r'(pos_embed|cls_token|temp)$')


def expected_settings(name, param, depth, base_lr, base_decay, rate):
    """Rate and decay by the formula of ViTDet: lr * rate^(L + 1 - id)."""
    block = re.match(r'backbone\.blocks\.(\d+)\.', name)
    if block:
        layer = int(block[1]) + 1
    elif re.match(r'backbone\.(patch_embed|pos_embed|pos_embeder|cls_token)\b', name):
        layer = 0
    else:
        layer = depth + 1
    decay = 0 if param.ndim == 1 or NO_DECAY.search(name) else base_decay
    return base_lr * rate**(depth + 1 - layer), decay


@pytest.mark.parametrize('name', CONFIGS)
def test_full_size_optimizer_groups(name):
    """Builds the real model without memory and checks every parameter's rate and decay."""
    cfg = load(name)
    with torch.device('meta'):
        model = MODELS.build(cfg.model)
    wrapper = cfg.optim_wrapper
    wrapper.type = 'OptimWrapper'
    rate = wrapper.paramwise_cfg.layer_decay_rate
    groups = build_optim_wrapper(model, wrapper).optimizer.param_groups
    settings = {}
    for group in groups:
        for param_name in group['param_names']:
            assert param_name not in settings
            settings[param_name] = (group['lr'], group['weight_decay'])
    params = {name: param for name, param in model.named_parameters() if param.requires_grad}
    assert set(settings) == set(params)
    depth = DEPTH.get(cfg.model.backbone.arch, 12)
    assert rate == (0.8 if depth == 24 else 0.7)
    for param_name, param in params.items():
        lr, decay = expected_settings(param_name, param, depth, 1e-4, 0.1, rate)
        assert settings[param_name] == (pytest.approx(lr), decay), param_name
    assert cfg.auto_scale_lr.base_batch_size == 16


@pytest.mark.parametrize('name', CONFIGS)
def test_sizes_and_strides_agree(name):
    cfg = load(name)
    model = cfg.model
    size = cfg.image_size
    pipeline = {step.type: step for step in cfg.train_pipeline}
    assert pipeline['RandomResize'].scale == pipeline['RandomCrop'].crop_size == size
    assert size == (model.data_preprocessor.pad_size_divisor, ) * 2
    if 'img_size' in model.backbone:
        assert size == (model.backbone.img_size, ) * 2
    strides = list(MODELS.build(model.neck).strides)
    assert model.rpn_head.anchor_generator.strides == strides
    for key in ('bbox_roi_extractor', 'mask_roi_extractor'):
        if model.roi_head.get(key):
            assert model.roi_head[key].featmap_strides == strides[:4]
    assert cfg.train_dataloader.batch_size * 4 == cfg.auto_scale_lr.base_batch_size


@pytest.mark.parametrize('name', CONFIGS)
def test_start_is_what_a_classification_config_leaves(name, root_dir):
    """A local checkpoint is the last one of a config of ours for the same backbone."""
    backbone = load(name).model.backbone
    checkpoint = backbone.init_cfg.checkpoint
    if checkpoint.startswith('https://'):
        assert 'prefix' not in backbone.init_cfg and not backbone.key_bias
        return
    _, run, file = checkpoint.split('/')
    found = list((root_dir / 'configs').glob(f'*/{run}.py'))
    assert len(found) == 1, f'{run} is no config'
    cfg = Config.fromfile(found[0])
    assert file == f'epoch_{cfg.train_cfg.max_epochs}.pth'
    assert backbone.init_cfg.prefix == 'backbone.'
    classifier = cfg.model.backbone
    assert classifier.type.replace('ToST', 'DMST') == backbone.type
    assert arch_of(classifier) == arch_of(backbone)
    assert classifier.get('keep_ratio') == backbone.get('keep_ratio')


def arch_of(backbone):
    """Width, depth, attention and patch of a backbone config, behind any alias."""
    with torch.device('meta'):
        model = MODELS.build({**backbone, 'init_cfg': None, 'out_type': 'avg_featmap'})
    attn = model.blocks[0].attn  # relative positions and windows are new in the detector
    attn = BiasedAttention if isinstance(attn, BiasedAttention) else type(attn)
    return model.embed_dim, model.depth, attn, model.patch_size


@pytest.mark.parametrize('name', CONFIGS)
def test_training_step_and_prediction(name):
    cfg = small_config(name)
    model = build(cfg).train()
    loss, parts = losses_of(model, fake_batch())
    assert {'loss_rpn_cls', 'loss_rpn_bbox'} < set(parts)
    assert any('loss_bbox' in part for part in parts)
    assert ('faster' in name) != any('loss_mask' in part for part in parts)
    loss.backward()
    for param_name, param in model.named_parameters():
        if param.requires_grad:
            assert param.grad is not None and param.grad.isfinite().all(), param_name
    wrapper = cfg.optim_wrapper
    wrapper.type = 'OptimWrapper'
    before = model.backbone.patch_embed.state_dict()
    before = {key: value.clone() for key, value in before.items()}
    build_optim_wrapper(model, wrapper).optimizer.step()
    after = model.backbone.patch_embed.state_dict()
    assert any(not torch.equal(before[key], after[key]) for key in before)

    results = model.eval().test_step(fake_batch(objects=(0, 0)))
    for sample, (height, width) in zip(results, ((100, 128), (128, 70)), strict=True):
        found = sample.pred_instances
        assert 0 < len(found) <= 10 and found.bboxes.isfinite().all()
        assert (found.bboxes[:, 2] <= width).all() and (found.bboxes[:, 3] <= height).all()
        if 'faster' not in name:
            assert found.masks.shape == (len(found), height, width)


@pytest.mark.parametrize('sizes', [
    ((333, 517), ), ((1024, 768), ), ((64, 1056), ), ((65, 31), (48, 100)), ((16, 16), )])
@pytest.mark.parametrize('divisor', [1, 16])
def test_any_size(sizes, divisor):
    """Levels have the ceil of the padded size over the stride; boxes stay in the image."""
    cfg = small_config(PAIR, dim=8, width=8)
    cfg.model.data_preprocessor.pad_size_divisor = divisor
    model = build(cfg).eval()
    batch = fake_batch(sizes, (0, ) * len(sizes))
    with torch.no_grad():
        levels = model.extract_feat(model.data_preprocessor(batch)['inputs'])
        results = model.test_step(fake_batch(sizes, (0, ) * len(sizes)))
    padded = [-(-max(side) // 16) * 16 for side in zip(*sizes, strict=True)]
    for level, stride in zip(levels, (4, 8, 16, 32, 64), strict=True):
        assert level.shape[2:] == tuple(-(-side // stride) for side in padded)
        assert level.is_contiguous()
    for sample, (height, width) in zip(results, sizes, strict=True):
        boxes = sample.pred_instances.bboxes
        assert (boxes >= 0).all() and (boxes[:, 2] <= width).all()
        assert (boxes[:, 3] <= height).all()


@pytest.mark.slow
@pytest.mark.parametrize('keep_ratio, gflops', [(None, 1171.68), ((0.9, 0.1), 1017.25)])
def test_flops_of_the_paper(keep_ratio, gflops):
    """Full detector at 1024² with 1,000 proposals and 100 mask boxes, counted by running it."""
    from mmext.analysis.flop_counter import count_by_part
    name = PAIR if keep_ratio else 'mask-rcnn_deit-s_sfp_lsj-100e_coco.py'
    cfg = load(name)
    cfg.model.backbone.init_cfg = None
    model = MODELS.build(cfg.model).eval()
    model.backbone.set_gather('after')
    counts = count_by_part(model, torch.rand(1, 3, 1024, 1024), 1000, 100, False)
    total = sum(count.gflops for count in counts.values())
    assert total == pytest.approx(gflops, abs=0.005)
    assert total - counts['backbone'].gflops == pytest.approx(686.08, abs=0.005)
