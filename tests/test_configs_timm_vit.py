"""Every config of configs/timm_vit builds at full size; a narrow one trains a step and predicts."""

from pathlib import Path

import pytest
import torch
from detection_helpers import build, fake_batch, losses_of
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import init_default_scope
from mmpretrain.structures import DataSample

from mmext.registry import MODELS

FOLDER = Path(__file__).resolve().parents[1] / 'configs' / 'timm_vit'
CONFIGS = sorted(path.name for path in FOLDER.glob('mask-rcnn*.py'))
CLASSIFIERS = sorted(path.name for path in FOLDER.glob('*cifar*.py'))


@pytest.mark.parametrize('name', CONFIGS)
def test_builds_at_full_size(name):
    init_default_scope('mmdet')
    cfg = Config.fromfile(FOLDER / name)
    with torch.device('meta'):
        model = MODELS.build(cfg.model)
    pruned = 'bias' in name
    assert bool(model.backbone.pruned_layers()) == pruned
    wrapper = cfg.optim_wrapper
    wrapper.type = 'OptimWrapper'
    rates = {group['lr'] for group in build_optim_wrapper(model, wrapper).optimizer.param_groups}
    assert len(rates) == model.backbone.depth + 2  # a rate for the embedding, each block, the rest
    x = torch.zeros(1, 3, 1024, 1024, device='meta')
    maps = model.neck.to('meta')((torch.zeros(1, cfg.model.neck.in_channels, 64, 64,
                                              device='meta'),))
    assert model.backbone.embed_dim == cfg.model.neck.in_channels
    assert [x.shape[-1] // y.shape[-1] for y in maps] == cfg.strides


@pytest.mark.parametrize('name', ['mask-rcnn_dinov2-s-bias-0.9-0.1_sfp_lsj-100e_coco.py',
                                  'mask-rcnn_sam-b-bias-0.9-0.1_sfp_lsj-100e_coco.py'])
def test_a_narrow_one_trains_a_step_and_predicts(name):
    cfg = Config.fromfile(FOLDER / name)
    model = cfg.model
    model.data_preprocessor.pad_size_divisor = 128
    model.backbone.update(init_cfg=None, img_size=128, model_args=dict(
        embed_dim=32, depth=4, num_heads=2,
        **(dict(global_attn_indexes=(1, 3), window_size=3) if 'sam' in name else {})))
    model.neck.update(in_channels=32, out_channels=16)
    model.rpn_head.update(in_channels=16, feat_channels=16)
    for part in ('bbox_roi_extractor', 'mask_roi_extractor'):
        model.roi_head[part].out_channels = 16
    model.roi_head.bbox_head.update(in_channels=16, conv_out_channels=16, fc_out_channels=32)
    model.roi_head.mask_head.update(in_channels=16, conv_out_channels=16)
    model.train_cfg.rpn_proposal.update(nms_pre=50, max_per_img=40)
    model.test_cfg.rpn.update(nms_pre=50, max_per_img=40)
    detector = build(cfg).train()
    loss, _ = losses_of(detector, fake_batch())
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is not None for p in detector.parameters() if p.requires_grad)
    batch = fake_batch()
    with torch.no_grad():
        found = detector.eval()(**detector.data_preprocessor(batch, False), mode='predict')
    assert len(found) == 2


def test_classifiers_differ_in_the_attention_alone():
    """Features of the class token, the classes of the data, a rate for every block."""
    init_default_scope('mmpretrain')
    dense, pruned = sorted((Config.fromfile(FOLDER / name) for name in CLASSIFIERS),
                           key=lambda cfg: cfg.model.backbone.key_bias)
    assert pruned.model.backbone.pop('keep_ratio') == (.9, .1)
    pruned.model.backbone.key_bias = False
    assert {**dense, 'model': None} == {**pruned, 'model': None}
    assert dense.model == pruned.model
    dense.model.backbone.update(img_size=32, init_cfg=None, key_bias=True, keep_ratio=(.9, .1),
                                model_args=dict(embed_dim=32, depth=4, num_heads=2))
    dense.model.head.in_channels = 32
    model = MODELS.build({**dense.model, 'data_preprocessor': dense.data_preprocessor})
    dense.optim_wrapper.type = 'OptimWrapper'
    groups = build_optim_wrapper(model, dense.optim_wrapper).optimizer.param_groups
    assert {round(group['lr'] / 1e-4, 6) for group in groups} == {
        round(.75 ** k, 6) for k in range(6)}
    data = dict(inputs=[torch.randint(256, (3, 32, 32), dtype=torch.uint8)] * 2,
                data_samples=[DataSample().set_gt_label(i) for i in (3, 97)])
    loss = model(**model.data_preprocessor(data, True), mode='loss')['loss']
    loss.backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
    assert model.eval().test_step(data)[0].pred_score.shape == (100,)
