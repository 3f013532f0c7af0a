"""The fast CocoMetric against mmdet's on pycocotools, and hotcoco against pycocotools."""

import contextlib
import copy
import io
import json
import logging
import socket

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pycocotools import mask as mask_utils
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

import mmext.registry  # noqa: F401  (first: it prepares mmcv's ops for mmdet)
from mmext.engine import coco_evaluation
from mmext.engine.coco_evaluation import as_dicts, evaluate, why_not_hotcoco

SIDE = 160
GRID = st.sampled_from([0, 1, 5, 10, 32, 33, 64])
SIZE = st.sampled_from([1, 5, 16, 32, 33, 96])  # areas on the borders 32² and 96²
BOX = st.tuples(GRID, GRID, SIZE, SIZE).map(lambda box: [float(side) for side in box])


def rle(box, height=SIDE):
    mask = np.zeros((height, SIDE), np.uint8, order='F')
    x, y, w, h = map(int, box)
    mask[y:y + h, x:x + w] = 1
    code = mask_utils.encode(mask)
    return dict(size=code['size'], counts=code['counts'].decode())


@st.composite
def cases(draw):
    """Few images and classes: ids with gaps and 0, ties, crowds, nothing at all, odd masks."""
    images = draw(st.lists(st.sampled_from([0, 1, 2, 40, 10**12]), min_size=1, max_size=4,
                           unique=True))
    classes = draw(st.lists(st.sampled_from([0, 1, 3, 90]), min_size=1, max_size=3, unique=True))
    where = st.tuples(st.sampled_from(images), st.sampled_from(classes))
    boxes = draw(st.lists(BOX, min_size=1, max_size=3))
    box = st.sampled_from(boxes) | BOX
    objects = draw(st.lists(st.tuples(
        where, box, st.booleans(), st.sampled_from([0, None, 1]), st.booleans()), max_size=10))
    anns = []
    for i, ((image, category), (x, y, w, h), crowd, ignore, polygon) in enumerate(objects):
        outline = [[x, y, x + w, y, x + w, y + h, x, y + h]]
        anns.append(dict(
            id=3 * i + 1, image_id=image, category_id=category, bbox=[x, y, w, h],
            area=w * h * draw(st.sampled_from([1, .7])), iscrowd=int(crowd),
            segmentation=outline if polygon and not crowd else rle([x, y, w, h]),
            **({} if ignore is None else dict(ignore=ignore))))
    found = draw(st.lists(st.tuples(
        where, box, st.sampled_from([0., .3, .5, 1.]), st.sampled_from([SIDE, SIDE, 100])),
        max_size=25))
    table = np.array([[image, *b, score, category] for (image, category), b, score, _ in found])
    masks = [rle(b, height) for _, b, _, height in found] if draw(st.booleans()) else None
    options = dict(
        cat_ids=draw(st.sampled_from([classes, classes[:1]])),
        max_dets=draw(st.sampled_from([(1, 10, 100), (100, 300, 1000), (1, 2, 3)])),
        iou_thrs=draw(st.sampled_from([None, [.5], [.3, .75]])))
    dataset = dict(
        images=[dict(id=i, width=SIDE, height=SIDE, file_name='') for i in images],
        categories=[dict(id=i, name=f'c{i}') for i in classes], annotations=anns)
    return dataset, table.reshape(-1, 7), masks, options


def coco(dataset):
    gt = COCO()
    gt.dataset = copy.deepcopy(dataset)
    gt.createIndex()
    return gt


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_hotcoco_equals_pycocotools(case):
    dataset, table, masks, options = case
    with contextlib.redirect_stdout(io.StringIO()):
        assert why_not_hotcoco(coco(dataset), table) is None
        fast, slow = (evaluate(coco(dataset), table, copy.deepcopy(masks), backend=backend,
                               **options) for backend in coco_evaluation.BACKENDS)
        fast.summarize()
        slow.summarize()
    for name in ('precision', 'recall', 'scores'):
        np.testing.assert_allclose(fast.eval[name], slow.eval[name], rtol=0, atol=1e-9)
    np.testing.assert_allclose(fast.stats, slow.stats, rtol=0, atol=1e-9)


def tiny(**annotation):
    ann = dict(id=1, image_id=1, category_id=1, bbox=[0, 0, 9, 9], area=81, iscrowd=0)
    return coco(dict(images=[dict(id=1, width=20, height=20)],
                     categories=[dict(id=1, name='a')], annotations=[dict(ann, **annotation)]))


@pytest.mark.parametrize('gt, score, use_cats, reason', [
    (tiny(id=0), .5, True, 'annotation ids'), (tiny(), np.inf, True, 'not finite'),
    (tiny(), .5, False, 'proposals')])
def test_what_hotcoco_does_otherwise_is_left_to_pycocotools(gt, score, use_cats, reason):
    table = np.array([[1, 0, 0, 9, 9, score, 1]], dtype=float)
    with pytest.warns(UserWarning, match=reason):
        run = evaluate(gt, table, use_cats=use_cats)
    best = run.eval['precision'].max()
    assert best == pytest.approx(0 if reason == 'annotation ids' else 1)


def test_without_hotcoco(monkeypatch):
    monkeypatch.setattr(coco_evaluation.importlib.util, 'find_spec', lambda name: None)
    with pytest.warns(UserWarning, match='pip install hotcoco'):
        run = evaluate(tiny(), np.array([[1, 0, 0, 9, 9, .5, 1]], dtype=float))
    assert run.eval['precision'].max() == pytest.approx(1)


def test_images_that_the_file_lacks():
    with pytest.raises(ValueError, match='image_id 7'):
        evaluate(tiny(), np.array([[7, 0, 0, 9, 9, .5, 1]], dtype=float))


@pytest.fixture(scope='module')
def predictions(shared_dir):
    """Real annotations with moved boxes, some confused; what ``process`` keeps of them."""
    path = str(shared_dir / 'data' / 'coco_mini' / 'annotations' / 'instances_val2017.json')
    gt, rng = COCO(path), np.random.default_rng(0)
    ids = gt.getCatIds()
    results = []
    for image_id, image in gt.imgs.items():
        anns = [ann for ann in gt.loadAnns(gt.getAnnIds(image_id)) if rng.random() < .8]
        boxes = np.array([ann['bbox'] for ann in anns], dtype=np.float32).reshape(-1, 4)
        boxes += rng.normal(0, .04, boxes.shape) * np.tile(boxes[:, 2:], 2)
        boxes[:, 2:] += boxes[:, :2]
        labels = np.array([ids.index(ann['category_id']) for ann in anns], dtype=int)
        wrong = rng.random(len(labels)) < .2
        labels[wrong] = rng.integers(0, len(ids), wrong.sum())
        results.append((dict(img_id=image_id, width=image['width'], height=image['height']), dict(
            img_id=image_id, bboxes=boxes.astype(np.float32), labels=labels,
            scores=rng.random(len(labels)).round(1).astype(np.float32),
            masks=[gt.annToRLE(ann) for ann in anns])))
    return path, [gt.cats[i]['name'] for i in ids], results


@pytest.mark.parametrize('options', [
    dict(metric=['bbox', 'segm'], classwise=True),
    dict(metric='proposal', proposal_nums=(1, 10, 100)),
    dict(metric='bbox', metric_items=['mAP', 'AR@100', 'AR_l@1000'])])
def test_metric_equals_that_of_mmdet(predictions, tmp_path, caplog, options):
    """Keys in their order, numbers and logged tables; also the written files."""
    from mmdet.evaluation import CocoMetric
    from mmengine.logging import MMLogger

    from mmext.registry import METRICS
    path, names, results = predictions
    text, values, files = [], [], []
    for i, build in enumerate((CocoMetric, METRICS.get('mmext.CocoMetric'))):
        metric = build(ann_file=path, outfile_prefix=str(tmp_path / str(i)), **options)
        metric.dataset_meta = dict(classes=names)
        logger = MMLogger.get_current_instance()
        stream = io.StringIO()
        handler = logging.StreamHandler(stream)
        logger.addHandler(handler)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            values.append(metric.compute_metrics(copy.deepcopy(results)))
        logger.removeHandler(handler)
        text.append([line for line in (stream.getvalue() + out.getvalue()).splitlines()
                     if line.startswith(('|', '+', ' Average', 'bbox_', 'segm_', 'AR@'))])
        files.append([json.loads((tmp_path / f'{i}.{kind}.json').read_text())
                      for kind in ('bbox', 'segm')])
    assert list(values[0]) == list(values[1]) and values[0]
    np.testing.assert_array_equal(list(values[0].values()), list(values[1].values()))
    assert text[0] == text[1] and len(text[0]) > 2
    assert files[0] == files[1]


def data_samples(results, names):
    """What a detector would have put out to give ``results``, and its ground truth."""
    import torch
    from mmengine.structures import InstanceData
    return [
        dict(img_id=pred['img_id'], ori_shape=(gt['height'], gt['width']),
             instances=[dict(bbox=[0., 0., 9., 9.], bbox_label=0, ignore_flag=0,
                             mask=[[0., 0., 9., 0., 9., 9.]])],
             pred_instances=InstanceData(
                 **{key: torch.from_numpy(pred[key]) for key in ('bboxes', 'labels', 'scores')},
                 masks=torch.from_numpy(
                     mask_utils.decode(pred['masks']).transpose(2, 0, 1).astype(bool)
                     if pred['masks'] else np.zeros((0, gt['height'], gt['width']), bool))))
        for gt, pred in results]


@pytest.mark.parametrize('fast', [True, False])
@pytest.mark.parametrize('file', [True, False])
def test_process_equals_that_of_mmdet(predictions, monkeypatch, fast, file):
    """Predictions, ground truth without a file, masks with and without hotcoco; nothing kept
    shares memory with the network's output."""
    from mmdet.evaluation import CocoMetric as Reference

    from mmext.engine.coco_metric import CocoMetric
    path, names, results = predictions
    results = results[:6] + [(results[6][0], {
        **results[6][1], 'masks': [], **{key: results[6][1][key][:0]
                                         for key in ('bboxes', 'labels', 'scores')}})]
    samples = data_samples(results, names)
    if not fast:
        monkeypatch.setattr(coco_evaluation.importlib.util, 'find_spec', lambda name: None)
    metrics = [cls(ann_file=path if file else None, metric=['bbox', 'segm'])
               for cls in (Reference, CocoMetric)]
    for metric in metrics:
        for i in range(0, len(samples), 3):
            metric.process({}, [{**sample, 'pred_instances': sample['pred_instances'].to_dict()}
                                for sample in samples[i:i + 3]])
    assert len(metrics[0].results) == len(metrics[1].results) == 7
    for (gt, old), (new_gt, new), sample in zip(
            *(metric.results for metric in metrics), samples, strict=True):
        assert gt == new_gt and list(old) == list(new)
        for key in ('bboxes', 'labels', 'scores'):
            np.testing.assert_array_equal(old[key], new[key])
            assert not np.shares_memory(new[key], sample['pred_instances'][key].numpy())
        assert old['masks'] == list(new['masks']) and old['img_id'] == new['img_id']
    if file:
        for metric in metrics:
            metric.dataset_meta = dict(classes=names)
        old, new = (metric.evaluate(len(samples)) for metric in metrics)
        assert old == new and len(new) == 12


PROCESSES = 2


def evaluate_in_process(rank, port, path, names, results, folder):
    """Images as a distributed sampler deals them out: in turn, filled up with the first ones."""
    import os

    import torch
    import torch.distributed as dist

    from mmext.engine.coco_metric import CocoMetric
    os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group('gloo', rank=rank, world_size=PROCESSES)
    metric = CocoMetric(ann_file=path, metric=['bbox', 'segm'], collect_device='cpu')
    metric.dataset_meta = dict(classes=names)
    dealt = (results + results[:1])[rank::PROCESSES]
    for sample in data_samples(dealt, names):
        metric.process({}, [{**sample, 'pred_instances': sample['pred_instances'].to_dict()}])
    values = metric.evaluate(len(results))
    (folder / f'{rank}.json').write_text(json.dumps(values))
    dist.destroy_process_group()


def test_two_processes(predictions, tmp_path):
    """As many numbers, and the same, as one process gives; a padded image counts once."""
    import torch.multiprocessing as mp

    from mmext.engine.coco_metric import CocoMetric
    path, names, results = predictions
    results = results[:-1] if len(results) % PROCESSES == 0 else results
    single = CocoMetric(ann_file=path, metric=['bbox', 'segm'])
    single.dataset_meta = dict(classes=names)
    for sample in data_samples(results, names):
        single.process({}, [{**sample, 'pred_instances': sample['pred_instances'].to_dict()}])
    expected = single.evaluate(len(results))
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    mp.spawn(evaluate_in_process, (port, path, names, results, tmp_path), nprocs=PROCESSES)
    assert len(expected) == 12 and expected['coco/segm_mAP'] > .1
    for rank in range(PROCESSES):
        assert json.loads((tmp_path / f'{rank}.json').read_text()) == expected


def test_real_annotations(predictions):
    """All twelve numbers and every class at full precision."""
    from mmext.engine.coco_metric import detections
    path, _, results = predictions
    gt = COCO(path)
    for metric in ('bbox', 'segm'):
        table, masks = detections([pred for _, pred in results], gt.getCatIds(), metric)
        fast = evaluate(gt, table, masks)
        slow = COCOeval(gt, gt.loadRes(as_dicts(table, copy.deepcopy(masks))), metric)
        slow.evaluate()
        slow.accumulate()
        slow.summarize()
        fast.summarize()
        assert .1 < slow.stats[0] < .95
        np.testing.assert_allclose(fast.stats, slow.stats, rtol=0, atol=1e-9)
        np.testing.assert_allclose(fast.eval['precision'], slow.eval['precision'], atol=1e-9)


def test_nothing_found(predictions):
    """As of mmdet's: no numbers, which ends neither loop nor ``save_best``."""
    from mmext.engine.coco_metric import CocoMetric
    path, names, results = predictions
    metric = CocoMetric(ann_file=path, metric='bbox')
    metric.dataset_meta = dict(classes=names)
    empty = [(gt, {**pred, 'bboxes': pred['bboxes'][:0], 'labels': pred['labels'][:0],
                   'scores': pred['scores'][:0], 'masks': []}) for gt, pred in results]
    assert metric.compute_metrics(empty) == {}
    for wrong in (dict(backend='fast'), dict(metric_items=['AP']), dict(metric='proposal_fast')):
        with pytest.raises(ValueError, match=r'none of|NumPy'):
            CocoMetric(ann_file=path, **wrong)
