"""mmdet's panoptic data set and metric with panopticapi-lite: known values."""

import json
import subprocess
import sys

import cv2
import numpy as np
import pytest
import torch
from mmengine.registry import init_default_scope

import mmext.registry  # noqa: F401

pytest.importorskip('panopticapi')
CLASSES = ('cat', 'dog', 'grass')


def write_ids(path, ids):
    cv2.imwrite(str(path), np.stack([ids >> 16, ids >> 8 & 255, ids & 255], -1).astype(np.uint8))


def evaluate(metric, samples, classes, things):
    """``samples``: (img_id, file name, panoptic map of mmdet's ids) -> mmdet's numbers."""
    metric.dataset_meta = dict(classes=classes, thing_classes=things)
    metric.process({}, [
        dict(img_id=img_id, img_path=name, ori_shape=pan.shape,
             pred_panoptic_seg=dict(sem_seg=torch.from_numpy(pan.astype(np.int32))[None]))
        for img_id, name, pan in samples])
    return metric.evaluate(len(samples))


@pytest.fixture(scope='module')
def digits(root_dir, tmp_path_factory):
    out = tmp_path_factory.mktemp('data') / 'digits'
    subprocess.run(
        [sys.executable, str(root_dir / 'tools/dataset_converters/digits.py'), '--out', str(out),
         '--train', '1', '--val', '8', '--cls-copies', '1'], check=True, capture_output=True)
    return out / 'panoptic'


@pytest.fixture
def dataset(digits, root_dir):
    from mmdet.registry import DATASETS
    from mmengine.config import Config
    init_default_scope('mmdet')
    cfg = Config.fromfile(root_dir / 'configs/quickstart/digits_panoptic_fpn.py')
    cfg.val_dataloader.dataset.data_root = str(digits)
    return DATASETS.build(cfg.val_dataloader.dataset)


def ground_truth(dataset, digits):
    """The data set's own masks and labels as mmdet's panoptic maps: label + 1,000 x instance."""
    for i in range(len(dataset)):
        sample = dataset[i]['data_samples']
        pan = sample.gt_sem_seg.sem_seg[0].numpy().astype(int)
        assert pan.max() < 13
        masks = sample.gt_instances.masks.masks
        for number, (mask, label) in enumerate(
                zip(masks, sample.gt_instances.labels, strict=True), 1):
            assert (pan[mask == 1] == int(label)).all()
            pan[mask == 1] += 1000 * number
        yield sample.img_id, sample.img_path, pan


def metric_of(folder, split='val'):
    from mmdet.evaluation import CocoPanopticMetric
    return CocoPanopticMetric(
        ann_file=str(folder / 'annotations' / f'panoptic_{split}.json'),
        seg_prefix=str(folder / 'annotations' / f'panoptic_{split}'))


def test_ground_truth_given_as_prediction_is_100(dataset, digits):
    found = evaluate(metric_of(digits), list(ground_truth(dataset, digits)),
                     dataset.metainfo['classes'], dataset.metainfo['thing_classes'])
    assert len(found) == 9
    assert all(value == 100 for value in found.values()), found


def test_a_wrong_label_costs_what_the_formula_says(dataset, digits):
    """Plain paper called ruled in every image: two of three stuff classes change, by formula."""
    truth = list(ground_truth(dataset, digits))
    wrong = [(i, name, np.where(pan == 10, 11, pan)) for i, name, pan in truth]
    found = evaluate(metric_of(digits), wrong, dataset.metainfo['classes'],
                     dataset.metainfo['thing_classes'])
    tp = fp = fn = total = 0
    for _, _, pan in truth:
        plain, ruled = (pan == 10).sum(), (pan == 11).sum()
        if plain + ruled == 0:
            continue
        iou = ruled / (plain + ruled)
        matched = iou > .5
        tp, total = tp + matched, total + iou * matched
        fp, fn = fp + (not matched), fn + (not matched and ruled > 0)
    assert any((pan == 10).any() for _, _, pan in truth)
    ruled_quality = total / (tp + .5 * fp + .5 * fn)
    assert found['coco_panoptic/PQ_th'] == 100
    assert found['coco_panoptic/PQ_st'] == pytest.approx(100 * (0 + ruled_quality + 1) / 3)


@pytest.fixture
def hand_made(tmp_path):
    """One image of 20²: a cat of 10² in the corner, grass, and 20 pixels of no segment."""
    ids = np.full((20, 20), 9)
    ids[:10, :10] = 5
    ids[18:, 10:] = 0
    folder = tmp_path / 'annotations' / 'panoptic_val'
    folder.mkdir(parents=True)
    write_ids(folder / 'a.png', ids)

    def info(i, category, box):
        return dict(id=i, category_id=category, bbox=box, area=int((ids == i).sum()), iscrowd=0)

    (folder.parent / 'panoptic_val.json').write_text(json.dumps(dict(
        images=[dict(id=1, file_name='a.jpg', width=20, height=20)],
        annotations=[dict(image_id=1, file_name='a.png', segments_info=[
            info(5, 1, [0, 0, 10, 10]), info(9, 3, [0, 0, 20, 20])])],
        categories=[dict(id=i + 1, name=name, isthing=int(name != 'grass'))
                    for i, name in enumerate(CLASSES)])))
    return tmp_path


@pytest.mark.parametrize('shift, dog', [(0, False), (2, False), (2, True), (6, False)])
def test_hand_made(hand_made, shift, dog):
    """PQ = sum of IoU of matched pairs (IoU > .5) / (TP + FP / 2 + FN / 2), pixels counted here."""
    pan = np.full((20, 20), 2)
    pan[:10, shift:10 + shift] = 1000
    if dog:
        pan[15:18, :5] = 2001
    found = evaluate(metric_of(hand_made), [(1, 'a.jpg', pan)], CLASSES, CLASSES[:2])
    void = np.zeros((20, 20), bool)
    void[18:, 10:] = True
    cat, grass = np.zeros((20, 20), bool), ~void
    cat[:10, :10], grass[:10, :10] = True, False

    def quality(truth, predicted):
        iou = (truth & predicted).sum() / ((truth | predicted) & ~void).sum()
        return iou if iou > .5 else 0.

    cat_quality = quality(cat, pan == 1000)
    grass_quality = quality(grass, pan == 2)
    # the formulas by hand: 80 of 120 pixels, 260 of 300 less the dog
    if shift == 2:
        assert cat_quality == pytest.approx(80 / 120)
        assert grass_quality == pytest.approx((280 - 20 - 15 * dog) / 300)
    # a dog where there is none is a class with quality 0
    things = [cat_quality, 0.] if dog else [cat_quality]
    assert found['coco_panoptic/PQ_th'] == pytest.approx(100 * np.mean(things))
    assert found['coco_panoptic/PQ_st'] == pytest.approx(100 * grass_quality)
    assert found['coco_panoptic/PQ'] == pytest.approx(100 * np.mean([*things, grass_quality]))
