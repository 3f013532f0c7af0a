"""Numbers by class against pycocotools and supervision, and the figure by its pixels."""

import itertools

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from pycocotools.coco import COCO

import mmext.registry  # noqa: F401  (first: it prepares mmcv's ops for mmdet)
from mmext.engine.by_class import class_report, draw_class_report
from mmext.engine.coco_evaluation import CONFIDENT, evaluate

IDS = [3, 8, 20]
NAMES = ['cat', 'dog', 'a class with a very long name']


@pytest.fixture(scope='module')
def found():
    """One object a cell of a grid; most found near it, some under another name, some made up."""
    rng = np.random.default_rng(0)
    anns, table = [], []
    for image in range(1, 6):
        for cell in range(16):
            x, y = 50. * (cell % 4), 50. * (cell // 4)
            category = int(rng.choice(IDS[:2]))
            there = rng.random() < .8
            if there:
                anns.append(dict(id=len(anns) + 1, image_id=image, category_id=category,
                                 bbox=[x, y, 40, 40], area=1600, iscrowd=0))
            if rng.random() < .8:
                said = category if rng.random() < .7 else int(rng.choice(IDS))
                table.append([image, x + rng.uniform(0, 4), y, 40, 40, rng.random(), said])
    gt = COCO()
    gt.dataset = dict(
        images=[dict(id=i, width=200, height=200) for i in range(1, 6)], annotations=anns,
        categories=[dict(id=i, name=name) for i, name in zip(IDS, NAMES, strict=True)])
    gt.createIndex()
    return gt, np.array(table)


def test_average_precision_and_curves(found):
    """pycocotools' own evaluation of each class alone."""
    gt, table = found
    report = class_report(evaluate(gt, table), gt)
    assert [c['name'] for c in report['classes']] == NAMES
    for i, category in enumerate(IDS):
        alone = evaluate(gt, table, cat_ids=[category], backend='pycocotools')
        one, curve = report['classes'][i], alone.eval['precision'][0, :, 0, 0, -1]
        objects = len(gt.getAnnIds(catIds=[category]))
        assert one['objects'] == objects
        if not objects:
            assert one['mAP'] is None and report['precision'][i] is None
            continue
        alone.summarize()
        assert [one['mAP'], one['mAP_50'], one['mAP_75']] == pytest.approx(
            alone.stats[:3], abs=1e-4)
        assert report['precision'][i] == pytest.approx(curve, abs=1e-4)
    assert report['recall'] == pytest.approx(np.linspace(0, 1, 101))


def test_confusion_matrix_equals_supervision(found):
    sv = pytest.importorskip('supervision')
    gt, table = found
    label = {category: i for i, category in enumerate(IDS)}

    def detections(boxes, categories, scores=None):
        boxes = np.asarray(boxes).reshape(-1, 4)
        return sv.Detections(
            xyxy=np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1),
            class_id=np.array([label[c] for c in categories], dtype=int), confidence=scores)

    truth, said = [], []
    for image in gt.imgs:
        anns = gt.imgToAnns[image]
        truth.append(detections([a['bbox'] for a in anns], [a['category_id'] for a in anns]))
        rows = table[table[:, 0] == image]
        said.append(detections(rows[:, 1:5], rows[:, 6].astype(int), rows[:, 5]))
    wanted = sv.ConfusionMatrix.from_detections(
        predictions=said, targets=truth, classes=NAMES, conf_threshold=CONFIDENT,
        iou_threshold=.5).matrix
    got = np.array(class_report(evaluate(gt, table), gt)['confusion'])
    np.testing.assert_array_equal(got, wanted)
    assert got[0, 0] > 10 and got[0, 1] > 0 and got[-1].sum() > 0 and got[:, -1].sum() > 0


def test_without_hotcoco_the_matrix_is_left_out(found):
    gt, table = found
    report = class_report(evaluate(gt, table, backend='pycocotools'), gt)
    assert report['confusion'] is None and report['classes'][0]['mAP'] > 0
    draw_class_report(report, 'bbox')


@pytest.mark.parametrize('count', [3, 80])
def test_figure(count):
    """Texts lie inside the figure and do not cover each other; the worst and empty ones show."""
    rng = np.random.default_rng(0)
    classes = [dict(name=f'class {i}', objects=count - i, mAP=None if i == 1 else .5, mAP_50=.8,
                    mAP_75=.4) for i in range(count)]
    report = dict(classes=classes, recall=np.linspace(0, 1, 101).tolist(),
                  precision=[None if i == 1 else rng.random(101).tolist() for i in range(count)],
                  confusion=rng.integers(0, 9, (count + 1, count + 1)).tolist())
    figure = draw_class_report(report, 'segm')
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    names = figure.axes[0].get_yticklabels()
    assert len(names) == min(count, 40) and names[0].get_text() == f'class 0 ({count})'
    boxes = [label.get_window_extent() for label in names]
    assert all(a.y0 >= b.y1 - 1 for a, b in itertools.pairwise(boxes))
    height = figure.get_figheight() * figure.dpi
    assert all(box.x0 >= 0 and box.y0 >= 0 and box.y1 <= height for box in boxes)
    assert ('classes.json' in figure.get_suptitle()) == (count == 80)
    assert any(text.get_text() == 'no objects' for text in figure.axes[0].texts)
