"""Detectors on the images of a data set: bookkeeping, canvases and parts; never the times."""

import json

import cv2
import numpy as np
import pytest
import torch
from detection_helpers import CONFIG_DIR, MASKED, PAIR, small_config

from mmext.cli import benchmark, benchmark_data

SIZES = [(96, 64), (64, 96), (128, 32), (64, 64)]  # width, height


@pytest.fixture(scope='module')
def tool(load_tool):
    return load_tool('analysis_tools/benchmark')


@pytest.fixture(scope='module')
def coco(tmp_path_factory):
    """Four images of unlike shape with a box each, as COCO lays them out."""
    root = tmp_path_factory.mktemp('coco')
    images, objects = [], []
    rng = np.random.default_rng(0)
    for i, (width, height) in enumerate(SIZES):
        images.append(dict(id=i, file_name=f'{i}.png', width=width, height=height))
        objects.append(dict(
            id=i + 1, image_id=i, category_id=1, bbox=[4, 4, 20, 24], area=480, iscrowd=0,
            segmentation=[[4, 4, 24, 4, 24, 28, 4, 28]]))
        for split in ('train2017', 'val2017'):
            (root / split).mkdir(exist_ok=True)
            pixels = rng.integers(0, 255, (height, width, 3), dtype=np.uint8)
            cv2.imwrite(str(root / split / f'{i}.png'), pixels)
    # every class is in the file, as in COCO's
    classes = small_config(PAIR).model.roi_head.bbox_head.num_classes
    from mmdet.datasets import CocoDataset
    names = CocoDataset.METAINFO['classes']
    assert len(names) == classes
    content = dict(images=images, annotations=objects,
                   categories=[dict(id=i + 1, name=name) for i, name in enumerate(names)])
    (root / 'annotations').mkdir()
    for split in ('train2017', 'val2017'):
        (root / f'annotations/instances_{split}.json').write_text(json.dumps(content))
    return root


def small_file(folder, name):
    """A narrow form of a config on a canvas of 128 x 128, as a file."""
    cfg = small_config(name)
    for loader in (cfg.train_dataloader, cfg.test_dataloader):
        for step in loader.dataset.pipeline:
            if 'scale' in step:
                step.scale = (128, 128)
            if 'crop_size' in step:
                step.crop_size = (128, 128)
    path = folder / name
    cfg.dump(path)
    return str(path)


def run(tool, *args):
    return benchmark.run(tool.parse_args([str(arg) for arg in args]))


def test_images_on_their_canvases(tool, coco, tmp_path, capsys):
    configs = [small_file(tmp_path, name) for name in (PAIR, MASKED)]
    result = run(tool, 'images', '--config', *configs, '--data-root', coco, '--number', 4,
                 '--repeat', 2, '--warmup', 0, '--device', 'cpu')
    [table] = result['tables']
    assert table['level'] == 'images' and table['extent'] == 4
    square, own = table['rows'].values()
    assert square['detector']['speedup'] == 1.0
    # 128 on the longest side: 128 x 85, 85 x 128, 128 x 32 and 128 x 128 pixels
    assert square['detector']['megapixels'] == pytest.approx(.128**2)
    assert own['detector']['megapixels'] == pytest.approx(
        1e-6 * 128 * (96 + 96 + 32 + 128) / 4)
    for row in (square, own):
        assert 0 < row['backbone']['ms'] < row['detector']['ms']
        assert row['detector']['ms_p10'] <= row['detector']['ms_p90']
        assert row['detector']['peak_mib'] > 0
    assert own['detector']['peak_mib'] < 1.1 * square['detector']['peak_mib']
    assert 'mean canvas' in capsys.readouterr().out


def test_both_canvases_get_the_same_regions(tool, coco, tmp_path):
    """What the heads do does not depend on the padding, else the canvas would be timed twice."""
    data = benchmark_data.test_data(small_file(tmp_path, MASKED), str(coco))[1]
    model = benchmark.whole_models(tool.parse_args(
        ['detector', '--config', small_file(tmp_path, MASKED)]))['plain']
    seen = []
    forward = model.roi_head._bbox_forward
    model.roi_head._bbox_forward = lambda x, rois: seen.append(rois) or forward(x, rois)
    item = benchmark_data.pseudo_collate([data[1]])
    for divisor in (128, 16):
        model.data_preprocessor.val_pad_size_divisor = divisor
        times = benchmark_data.PartTimes('cpu', backbone=(model.backbone, 'forward'))
        taken = benchmark_data.test_pass(model, times, False, [])(item)
        assert set(taken) == {'backbone', 'detector'} and taken['backbone'] < taken['detector']
    assert torch.equal(*seen) and seen[0][:, 3].max() <= 85


def test_a_training_step_by_part(tool, coco, tmp_path):
    result = run(tool, 'training', '--config', small_file(tmp_path, PAIR), '--data-root', coco,
                 '--number', 2, '--repeat', 1, '--warmup', 1, '--device', 'cpu', '--only',
                 'pruned 0.9,0.1 mask', 'pruned 0.9,0.1 gather')
    rows = result['tables'][0]['rows']
    assert list(rows) == ['plain', 'pruned 0.9,0.1 mask', 'pruned 0.9,0.1 gather']
    for row in rows.values():
        assert list(row) == list(benchmark_data.PARTS)
        parts = sum(row[part]['ms'] for part in benchmark_data.PARTS[1:-1])
        assert .5 * row['step']['ms'] < parts < row['step']['ms']
    assert all(row['step']['peak_mib'] > 0 for row in rows.values())


def test_a_step_trains_the_way_it_says(tool, coco, tmp_path):
    args = tool.parse_args(['training', '--config', small_file(tmp_path, PAIR)])
    cfg, data = benchmark_data.test_data(args.config[0], str(coco), 'train')
    variants = benchmark_data.training_variants(args, cfg)
    assert variants['pruned 0.9,0.1 mask']['train_mode'] == 'mask'
    assert variants['pruned 0.9,0.1 gather']['train_mode'] == 'gather'
    assert variants['plain'] == dict(key_bias=False, keep_ratio=None, gather='auto')
    model = benchmark_data.build_model(cfg).train()
    before = {name: p.clone() for name, p in model.named_parameters()}
    benchmark_data.cpu.adapt_config(cfg)
    benchmark_data.training_pass(model, cfg, 'cpu')(
        (benchmark_data.pseudo_collate([data[0]]), 0.))
    assert all(not torch.equal(before[name], p) for name, p in model.named_parameters()
               if name.endswith('qkv.weight'))


def test_images_are_spread_over_their_shapes(coco):
    data = benchmark_data.test_data(str(CONFIG_DIR / PAIR), str(coco))[1]
    # by shape: 64 x 96, 64 x 64, 96 x 64, 128 x 32
    assert benchmark_data.spread_by_shape(data, 2) == [3, 2]
    assert sorted(benchmark_data.spread_by_shape(data, None)) == [0, 1, 2, 3]
    assert benchmark_data.spread_by_shape(data, 99) == benchmark_data.spread_by_shape(data, None)


def test_missing_data_are_named(tool, tmp_path):
    with pytest.raises(ValueError, match='annotations'):
        run(tool, 'images', '--config', CONFIG_DIR / PAIR, '--data-root', tmp_path / 'none',
            '--device', 'cpu')
