"""The data sets and metrics of configs/lvis and configs/cityscapes, run on files in their forms."""

import json

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope
from pycocotools import mask as mask_utils

import mmext.registry  # noqa: F401


def write_images(folder, count):
    rng = np.random.default_rng(0)
    for i in range(1, count + 1):
        folder.mkdir(parents=True, exist_ok=True)
        assert cv2.imwrite(str(folder / f'{i:012}.jpg'), rng.integers(0, 255, (60, 80, 3)))


def box_polygon(x, y, w, h):
    return [[x, y, x + w, y, x + w, y + h, x, y + h]]


def annotations(images, classes, rng, gap=1):
    found = []
    for image in images:
        for _ in range(4):
            x, y = rng.integers(0, 40), rng.integers(0, 30)
            w, h = rng.integers(8, 30, 2)
            found.append(dict(
                id=1 + gap * len(found), image_id=image['id'], category_id=int(rng.choice(classes)),
                bbox=[int(v) for v in (x, y, w, h)], area=int(w * h), iscrowd=0,
                segmentation=[[int(v) for v in line] for line in box_polygon(x, y, w, h)]))
    return found


def predictions(dataset, jitter, num_classes, rng):
    """Per image what mmdet's metrics take: the true boxes, moved by up to ``jitter`` pixels."""
    for index in range(len(dataset)):
        info = dataset.get_data_info(index)
        boxes = np.array([instance['bbox'] for instance in info['instances']])
        boxes = boxes + rng.integers(-jitter, jitter + 1, boxes.shape) if jitter else boxes
        labels = np.array([instance['bbox_label'] for instance in info['instances']])
        masks = np.zeros((len(boxes), info['height'], info['width']), bool)
        for mask, (x1, y1, x2, y2) in zip(masks, boxes.clip(0).astype(int), strict=True):
            mask[y1:y2, x1:x2] = True
        assert labels.max() < num_classes
        yield dict(
            img_id=info['img_id'], ori_shape=(info['height'], info['width']),
            instances=info['instances'],
            pred_instances=dict(
                bboxes=torch.tensor(boxes).float(), labels=torch.tensor(labels),
                scores=torch.tensor(rng.permutation(len(boxes)) / 10 + .1),
                masks=torch.tensor(masks)))


@pytest.fixture
def lvis_v1(tmp_path):
    """Five images in the form of LVIS v1: coco_url, frequencies, federated negatives."""
    from mmdet.datasets import LVISV1Dataset
    rng = np.random.default_rng(0)
    names = LVISV1Dataset.METAINFO['classes']
    write_images(tmp_path / 'val2017', 5)
    images = [dict(
        id=i, width=80, height=60, neg_category_ids=[3, 7], not_exhaustive_category_ids=[1],
        coco_url=f'http://images.cocodataset.org/val2017/{i:012}.jpg') for i in range(1, 6)]
    file = tmp_path / 'lvis_v1_val.json'
    file.write_text(json.dumps(dict(
        images=images, annotations=annotations(images, [1, 3, 7, 1203], rng),
        categories=[dict(id=i + 1, name=name, frequency='rcf'[i % 3])
                    for i, name in enumerate(names)])))
    return file


@pytest.mark.parametrize('jitter', [0, 4])
def test_lvis_equals_hotcoco(lvis_v1, root_dir, jitter, tmp_path):
    """mmdet's metric on the config's data set against another implementation of LVIS."""
    pytest.importorskip('lvis', reason='LVIS needs the package lvis')
    hotcoco = pytest.importorskip('hotcoco')
    from mmdet.registry import DATASETS, METRICS
    init_default_scope('mmdet')
    [config] = (root_dir / 'configs/lvis').glob('*.py')
    cfg = Config.fromfile(config)
    spec = cfg.val_dataloader.dataset
    spec.update(data_root=str(lvis_v1.parent), ann_file=lvis_v1.name)
    dataset = DATASETS.build(spec)
    assert len(dataset) == 5 and len(dataset.metainfo['classes']) == 1203
    assert dataset[0]['inputs'].shape[0] == 3  # its image is found and read

    cfg.val_evaluator.update(ann_file=str(lvis_v1), outfile_prefix=str(tmp_path / 'found'))
    metric = METRICS.build(cfg.val_evaluator)
    metric.dataset_meta = dataset.metainfo
    for sample in predictions(dataset, jitter, 1203, np.random.default_rng(1)):
        metric.process({}, [sample])
    found = metric.evaluate(len(dataset))
    for kind in ('bbox', 'segm'):
        truth = hotcoco.LVIS(str(lvis_v1))
        results = truth.load_res(str(tmp_path / f'found.{kind}.json'))
        evaluation = hotcoco.LVISEval(truth, results, kind)
        evaluation.run()
        theirs = evaluation.get_results()
        for key in ('AP', 'AP50', 'AP75', 'APr', 'APc', 'APf'):
            assert found[f'lvis/{kind}_{key}'] == pytest.approx(theirs[key], abs=1e-3), key
        assert (found[f'lvis/{kind}_AP'] == 1) == (jitter == 0)


def test_cityscapes_data_set_and_metric(root_dir, tmp_path):
    """Files as mmdet's converter of Cityscapes writes them, through the config's data set."""
    from mmdet.registry import DATASETS, METRICS
    init_default_scope('mmdet')
    [config] = (root_dir / 'configs/cityscapes').glob('*.py')
    cfg = Config.fromfile(config)
    spec = cfg.val_dataloader.dataset
    names = DATASETS.get(spec.type).METAINFO['classes']
    folder = tmp_path / spec.data_prefix.img / 'town'
    write_images(folder, 4)
    images = [dict(id=i, width=80, height=60, file_name=f'town/{i:012}.jpg',
                   segm_file=f'town/{i}_gtFine_instanceIds.png') for i in range(4, 0, -1)]
    for image, name in zip(images, sorted(folder.iterdir()), strict=True):
        image['file_name'] = f'town/{name.name}'
    rng = np.random.default_rng(0)
    # ids of Cityscapes' labels: person 24 ... bicycle 33, with gaps
    ids = dict(zip(names, (24, 25, 26, 27, 28, 31, 32, 33), strict=True))
    found = annotations(images, list(ids.values()), rng)
    for entry in found:
        x, y, w, h = entry['bbox']
        mask = np.zeros((60, 80), np.uint8, order='F')
        mask[y:y + h, x:x + w] = 1
        code = mask_utils.encode(mask)
        entry['segmentation'] = dict(size=code['size'], counts=code['counts'].decode())
    file = tmp_path / spec.ann_file
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(dict(
        images=images, annotations=found,
        categories=[dict(id=id, name=name) for name, id in ids.items()])))
    spec.data_root = str(tmp_path)
    dataset = DATASETS.build(spec)
    assert len(dataset) == 4
    assert dataset[0]['inputs'].shape == (3, 1024, 1365)  # 80 x 60 within 2048 x 1024

    evaluators = cfg.val_evaluator if isinstance(cfg.val_evaluator, list) else [cfg.val_evaluator]
    [spec] = [entry for entry in evaluators if 'CocoMetric' in entry.type]
    metric = METRICS.build({**spec, 'ann_file': str(file), 'metric': ['bbox', 'segm']})
    metric.dataset_meta = dataset.metainfo
    for sample in predictions(dataset, 0, 8, rng):
        metric.process({}, [sample])
    result = metric.evaluate(len(dataset))
    assert result['coco/bbox_mAP'] == 1 and result['coco/segm_mAP'] == 1


def test_cityscapes_own_metric(root_dir, tmp_path):
    """Truth given as prediction is 1; one of two objects missed is half of it."""
    pytest.importorskip('cityscapesscripts', reason='the metric needs cityscapesscripts')
    from mmdet.datasets import CityscapesDataset
    from mmdet.registry import METRICS
    init_default_scope('mmdet')
    [config] = (root_dir / 'configs/cityscapes').glob('*.py')
    [spec] = [entry for entry in Config.fromfile(config).val_evaluator
              if entry['type'] == 'CityScapesMetric']
    truth = tmp_path / 'gtFine' / 'val' / 'town'
    truth.mkdir(parents=True)
    samples = []
    for i in range(3):
        ids = np.full((60, 80), 7, np.uint16)  # road
        ids[5:30, 5:30], ids[30:55, 40:70] = 24001, 26002  # a person, a car
        cv2.imwrite(str(truth / f'{i}_gtFine_instanceIds.png'), ids)
        samples.append(dict(
            img_path=str(tmp_path / 'leftImg8bit' / 'val' / 'town' / f'{i}_leftImg8bit.png'),
            pred_instances=dict(labels=torch.tensor([0, 2]), scores=torch.tensor([.9, .8]),
                                masks=torch.tensor(np.stack([ids == 24001, ids == 26002])))))

    def mean_ap(samples, name):
        metric = METRICS.build({**spec, 'seg_prefix': str(tmp_path / 'gtFine' / 'val'),
                                'outfile_prefix': str(tmp_path / name)})
        metric.dataset_meta = CityscapesDataset.METAINFO
        for sample in samples:
            metric.process({}, [sample])
        return metric.evaluate(len(samples))['cityscapes/mAP']

    assert mean_ap(samples, 'all') == pytest.approx(1)
    for sample in samples:  # persons alone
        sample['pred_instances'] = {k: v[:1] for k, v in sample['pred_instances'].items()}
    assert mean_ap(samples, 'persons') == pytest.approx(.5)
