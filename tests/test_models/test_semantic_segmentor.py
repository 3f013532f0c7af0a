"""The semantic segmentor: shapes, the answer against mmdet's head, ignored pixels, refusals."""

import mmext.registry  # noqa: F401, I001  (before mmdet)
import pytest
import torch
import torch.nn.functional as F
from mmdet.structures import DetDataSample
from mmengine.registry import init_default_scope
from mmengine.structures import PixelData

from mmext.registry import MODELS


def build(things=0, classes=5):
    init_default_scope('mmdet')
    torch.manual_seed(0)
    return MODELS.build(dict(
        type='mmext.SemanticSegmentor',
        data_preprocessor=dict(
            type='DetDataPreprocessor', mean=[127.] * 3, std=[60.] * 3, pad_size_divisor=16,
            pad_seg=True, seg_pad_value=255),
        backbone=dict(
            type='mmext.BiasPrunedViT', arch=dict(embed_dim=16, depth=2, num_heads=2),
            img_size=64, with_cls_token=False, out_type='featmap', keep_ratio=(.9, .1)),
        neck=dict(type='mmext.SimpleFeaturePyramid', in_channels=16, out_channels=8,
                  scale_factors=[4, 2, 1], num_outs=3, in_stride=16),
        semantic_head=dict(
            type='PanopticFPNHead', num_things_classes=things, num_stuff_classes=classes,
            in_channels=8, inner_channels=8, end_level=3, norm_cfg=dict(type='GN', num_groups=2),
            loss_seg=dict(type='CrossEntropyLoss', ignore_index=255))))


def batch(sizes=((40, 64), (64, 33)), scale=1):
    g = torch.Generator().manual_seed(0)
    samples = []
    for size in sizes:
        sample = DetDataSample(metainfo=dict(
            img_shape=size, ori_shape=tuple(scale * side for side in size),
            scale_factor=(1 / scale,) * 2))
        sample.gt_sem_seg = PixelData(sem_seg=torch.randint(0, 5, (1, *size), generator=g))
        samples.append(sample)
    return dict(inputs=[torch.randint(0, 256, (3, *size), generator=g, dtype=torch.uint8)
                        for size in sizes], data_samples=samples)


def test_answer_is_of_the_original_size_and_the_largest_logit():
    model = build().eval()
    data = model.data_preprocessor(batch(scale=2))
    with torch.no_grad():
        found = model(**data, mode='predict')
        logits = model(data['inputs'])
    assert logits.shape == (2, 6, 16, 16)
    logits = F.interpolate(logits, size=(64, 64), mode='bilinear')[1:, :5, :64, :33]
    want = F.interpolate(logits, size=(128, 66), mode='bilinear').argmax(1)
    assert [sample.pred_sem_seg.sem_seg.shape for sample in found] == [(1, 80, 128), (1, 128, 66)]
    assert torch.equal(found[1].pred_sem_seg.sem_seg, want)
    assert len(want.unique()) > 1


def test_the_channel_of_all_things_is_never_the_answer():
    model = build().eval()
    with torch.no_grad():
        model.semantic_head.conv_logits.bias[-1] = 100.
        found = model.test_step(batch())
    assert max(int(sample.pred_sem_seg.sem_seg.max()) for sample in found) < 5


def test_loss_reaches_every_parameter_and_ignores_255():
    model = build().train()
    data = model.data_preprocessor(batch(), True)
    assert (data['data_samples'][0].gt_sem_seg.sem_seg[0, 40:] == 255).all()
    losses = model(**data, mode='loss')
    assert set(losses) == {'loss_seg'}
    losses['loss_seg'].backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
    for sample in data['data_samples']:
        sample.gt_sem_seg.sem_seg[:] = 255
    assert model(**data, mode='loss')['loss_seg'] == 0


def test_merged_classes_are_refused():
    with pytest.raises(ValueError, match='set it to 0 and num_stuff_classes'):
        build(things=2)
