"""The valid mask against mmdet's own preprocessor and its real pipelines."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from mmext.registry import MODELS

NORM = dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], bgr_to_rgb=True)


def build(type='mmext.MaskedDetDataPreprocessor', **kwargs):
    return MODELS.build(dict(type=type, **NORM, **kwargs))


def packed(image, **meta):
    from mmdet.structures import DetDataSample
    sample = DetDataSample(metainfo=dict(img_shape=image.shape[-2:], **meta))
    return image, sample


def batch(*sizes):
    generator = torch.Generator().manual_seed(0)
    pairs = [
        packed(torch.randint(0, 256, (3, *size), dtype=torch.uint8, generator=generator))
        for size in sizes
    ]
    images, samples = zip(*pairs, strict=True)
    return dict(inputs=list(images), data_samples=list(samples))


@pytest.mark.parametrize('training', [False, True])
@pytest.mark.parametrize('kwargs, expected', [
    (dict(), (40, 50)),
    (dict(pad_size_divisor=32), (64, 64)),
    (dict(pad_size_divisor=128), (128, 128)),
])
def test_mask_marks_the_image(training, kwargs, expected):
    sizes = ((40, 20), (17, 50))
    out = build(**kwargs)(batch(*sizes), training)['inputs']
    plain = build('mmdet.DetDataPreprocessor', **kwargs)(batch(*sizes), training)['inputs']
    assert out.shape == (2, 4, *expected)
    torch.testing.assert_close(out[:, :3], plain)
    for mask, (height, width) in zip(out[:, 3], sizes, strict=True):
        inside = torch.zeros_like(mask, dtype=torch.bool)
        inside[:height, :width] = True
        assert (mask[inside] == 1).all() and (mask[~inside] == 0).all()


def test_padding_is_the_mean_color():
    out = build(pad_size_divisor=64)(batch((20, 30)))['inputs'][0]
    padding = out[:3, out[3] == 0]
    assert padding.numel() > 0 and (padding == 0).all()


def test_fixed_size_batch_augment():
    augment = dict(type='mmdet.BatchFixedSizePad', size=(96, 96))
    model = build(batch_augments=[augment])
    out = model(batch((40, 20), (17, 50)), training=True)['inputs']
    assert out.shape == (2, 4, 96, 96)
    assert out[:, 3].sum((1, 2)).tolist() == [800, 850]


def test_without_data_samples():
    data = batch((40, 20), (17, 50))
    out = build()(dict(inputs=data['inputs']))['inputs']
    assert out[:, 3].sum((1, 2)).tolist() == [800, 850]
    stacked = dict(inputs=torch.stack([data['inputs'][0]] * 2))
    assert (build()(stacked)['inputs'][:, 3] == 1).all()


@pytest.mark.parametrize('ratio', [0.1, 2.0])
def test_large_scale_jitter_pipeline(ratio):
    """mmdet's transforms at the two ends of the jitter range: 99 % padding, and none."""
    from mmdet.registry import TRANSFORMS
    from mmengine.dataset import Compose, pseudo_collate
    steps = [
        dict(type='RandomResize', scale=(320, 320), ratio_range=(ratio, ratio),
             keep_ratio=True),
        dict(type='RandomCrop', crop_type='absolute', crop_size=(320, 320),
             recompute_bbox=True, allow_negative_crop=True),
        dict(type='RandomFlip', prob=1.0),
        dict(type='PackDetInputs'),
    ]
    with TRANSFORMS.switch_scope_and_registry('mmdet'):
        pipeline = Compose([TRANSFORMS.build(step) for step in steps])
    image = np.full((240, 320, 3), 200, dtype=np.uint8)
    results = pipeline(
        dict(img=image, img_shape=(240, 320), ori_shape=(240, 320), img_id=0, img_path='',
             gt_bboxes=boxes(np.array([[0, 0, 320, 240]], dtype=np.float32)),
             gt_bboxes_labels=np.zeros(1, dtype=np.int64), gt_ignore_flags=np.zeros(1, bool)))
    out = build(pad_size_divisor=320)(pseudo_collate([results]), training=True)['inputs'][0]
    assert out.shape == (4, 320, 320)
    # every image pixel is the bright 200, far from the mean color
    assert torch.equal(out[3] == 1, out[0] > 0.5)
    assert out[3].sum() == (24 * 32 if ratio == 0.1 else 320 * 320)


def boxes(array):
    from mmdet.structures.bbox import HorizontalBoxes
    return HorizontalBoxes(array)


def test_models_do_not_import_mmdet():
    code = ("import sys, mmext.models; assert not {'mmdet', 'mmpretrain'} & set(sys.modules), "
            "sorted(sys.modules)")
    subprocess.run([sys.executable, '-c', code], check=True)
