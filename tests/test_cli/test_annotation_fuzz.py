"""Random damage to a COCO file: refused by the check, or mmdet and pycocotools give AP 1."""

import copy
import json
import math
from collections import Counter

import numpy as np
import pytest
import torch
from pycocotools import mask as coco_mask

import mmext.registry  # noqa: F401  (first: it prepares mmcv's ops for mmdet)
from mmext.cli.annotation_check import AnnotationError, check_coco_file

CLASSES = ('cat', 'dog', 'cow')
SIZES = ((48, 64), (60, 40), (33, 33))  # height, width of the images
PLACES = {
    'images': ('id', 'file_name', 'height', 'width'),
    'categories': ('id', 'name', 'supercategory'),
    'annotations': ('id', 'image_id', 'category_id', 'bbox', 'area', 'iscrowd', 'segmentation',
                    'ignore'),
}
VALUES = [None, True, False, 0, 1, -1, 2, 3, 7, 0.5, 1.0, 64.0, -0.0, 1e-9, 1e11, 1e300,
          float('nan'), float('inf'), 2**31, 2**53, 2**63, 10**400, '', '1', 'cat', 'nan',
          '../x.png', [], [1], [[]], {}, {'size': [48, 64]}, [0, 0, 10, 10], [[1, 2, 3, 4]],
          [[5, 5, 20, 5, 20, 20]], [[5, 5, 20, 5, 20, 20, 7]], [5, 5, 20, 5, 20, 20]]


def whole():
    """Nine objects: polygons of one and two parts, both run-length codes, a crowd."""
    annotations = []
    for image, (height, width) in enumerate(SIZES):
        for label in range(3):
            x, y, w, h = 2 + 3 * label, 3 + 2 * label, 12 + label, 10 + 2 * label
            mask = np.zeros((height, width), np.uint8)
            mask[y:y + h, x:x + w] = 1
            code = coco_mask.encode(np.asfortranarray(mask))
            runs = np.diff(np.flatnonzero(np.diff(mask.T.ravel(), prepend=-1, append=-1)))
            runs = runs.tolist() if mask[0, 0] == 0 else [0, *runs.tolist()]
            square = [x, y, x + w, y, x + w, y + h, x, y + h]
            kinds = [[square], dict(size=[height, width], counts=code['counts'].decode()),
                     dict(size=[height, width], counts=runs)]
            annotations.append(dict(
                id=len(annotations) + 1, image_id=image + 1, category_id=label + 1,
                bbox=[x, y, w, h], area=w * h, iscrowd=int(image == label == 2),
                segmentation=kinds[(image + label) % 3]))
    annotations[0]['segmentation'].append([20, 20, 30, 20, 30, 30.5])
    return dict(
        images=[dict(id=i + 1, file_name=f'{i}.png', height=h, width=w)
                for i, (h, w) in enumerate(SIZES)],
        categories=[dict(id=i + 1, name=name) for i, name in enumerate(CLASSES)],
        annotations=annotations)


def mutate(data, rng):
    """One change: a field replaced, removed or copied from another entry, or a number in it
    moved, scaled or replaced."""
    data = copy.deepcopy(data)
    where = str(rng.choice(list(PLACES), p=[.2, .15, .65]))
    entries = data[where]
    entry = entries[rng.integers(len(entries))]
    field = str(rng.choice(PLACES[where]))
    kind = rng.integers(6)
    if kind == 0:
        entry.pop(field, None)
    elif kind == 1:
        entry[field] = copy.deepcopy(entries[rng.integers(len(entries))].get(field))
    elif kind == 2 and rng.random() < .3:
        entries.append(copy.deepcopy(entry))
    elif kind <= 3:
        entry[field] = copy.deepcopy(VALUES[rng.integers(len(VALUES))])
    else:
        field, entry[field] = f'{field}[..]', change_inside(entry.get(field), rng)
    return f'{where}.{field}', data


def change_inside(value, rng):
    if isinstance(value, dict) and value:
        key = list(value)[rng.integers(len(value))]
        return dict(value, **{key: change_inside(value[key], rng)})
    if isinstance(value, list) and value:
        value, at = list(value), rng.integers(len(value))
        kind = rng.integers(5)
        if kind == 0:
            del value[at]
        elif kind == 1:
            value.insert(at, value[at])
        else:
            value[at] = change_inside(value[at], rng)
        return value
    if isinstance(value, str) and value:
        at = rng.integers(len(value))
        return value[:at] + chr(int(rng.integers(33, 127))) * int(rng.integers(2)) + value[at + 1:]
    if isinstance(value, (int, float)) and rng.random() < .7:
        return [value + 1, value - 1, value * 1000, -value, value * 1e-3, value + 0.25][
            rng.integers(6)]
    return copy.deepcopy(VALUES[rng.integers(len(VALUES))])


def score_of_ground_truth(path, data):
    """Loads the file as mmdet does in training, and evaluates its objects as predictions."""
    from mmdet.datasets import CocoDataset
    from mmdet.datasets.transforms import LoadAnnotations
    from mmdet.evaluation import CocoMetric
    dataset = CocoDataset(ann_file=path, metainfo=dict(classes=CLASSES), data_prefix=dict(img=''),
                          test_mode=True, pipeline=[])
    load = LoadAnnotations(with_bbox=True, with_mask=True)
    sizes = {image['id']: (image['height'], image['width']) for image in data['images']}
    for i in range(len(dataset)):
        info = dataset.get_data_info(i)
        crowds = [one['ignore_flag'] for one in info['instances']]
        results = load(dict(info, ori_shape=sizes[info['img_id']]))
        assert len(results['gt_masks'].masks) == len(results['gt_bboxes_labels'])
        # nothing is ignored but what the file calls a crowd
        assert results['gt_ignore_flags'].tolist() == [bool(flag) for flag in crowds]
    metric = CocoMetric(ann_file=path, metric=['bbox', 'segm'])
    metric.dataset_meta = dict(classes=CLASSES)
    labels = {one['id']: CLASSES.index(one['name']) for one in data['categories']}
    predictions = []
    for image_id, (height, width) in sizes.items():
        objects = [one for one in data['annotations']
                   if one['image_id'] == image_id and not one['iscrowd']]
        boxes = torch.tensor([one['bbox'] for one in objects], dtype=torch.double).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        masks = [coco_mask.merge(coco_mask.frPyObjects(one['segmentation'], height, width))
                 if isinstance(one['segmentation'], list) else
                 coco_mask.frPyObjects(one['segmentation'], height, width)
                 if isinstance(one['segmentation']['counts'], list) else
                 dict(one['segmentation']) for one in objects]
        predictions.append(dict(
            img_id=image_id, ori_shape=(height, width), pred_instances=dict(
                bboxes=boxes, scores=torch.ones(len(objects), dtype=torch.double),
                labels=torch.tensor([labels[one['category_id']] for one in objects], dtype=int),
                masks=masks)))
    metric.process({}, predictions)
    result = metric.evaluate(len(predictions))
    return result['coco/bbox_mAP'], result['coco/segm_mAP']


def run(count, seed, tmp_path):
    rng = np.random.default_rng(seed)
    path = str(tmp_path / 'a.json')
    outcome, fields = Counter(), Counter()
    for number in range(count):
        name, data = mutate(whole(), rng) if number else ('nothing', whole())
        text = json.dumps(data)
        (tmp_path / 'a.json').write_text(text)
        try:
            report = check_coco_file(path, CLASSES, masks=True, train=True, evaluated=True)
            errors = report['errors']
        except AnnotationError as error:
            errors = [str(error)]
        fields[name] += 1
        if errors:
            outcome['refused'] += 1
            assert number and all(isinstance(error, str) for error in errors)
            continue
        outcome['evaluated'] += 1
        try:
            scores = score_of_ground_truth(path, json.loads(text))
        except Exception as error:
            raise AssertionError(f'{number}: {name}: {text}') from error
        assert all(math.isclose(score, 1) for score in scores), (number, name, scores, text)
    return outcome, fields


def test_fuzz(tmp_path):
    outcome, _ = run(40, 0, tmp_path)
    assert min(outcome['refused'], outcome['evaluated']) >= 8, outcome


@pytest.mark.slow
def test_fuzz_600(tmp_path):
    outcome, fields = run(600, 1, tmp_path)
    assert min(outcome['refused'], outcome['evaluated']) > 100, outcome
    assert len(fields) > 25, fields
