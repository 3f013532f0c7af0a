"""mmext.load: the same images by every way in, held against mmdet's and mmpretrain's own."""

import json
import subprocess
import sys

import cv2
import numpy as np
import pytest
import torch
from detection_helpers import PAIR, build, small_config
from PIL import Image
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

import mmext
from mmext.cli.config_check import ConfigError
from mmext.datasets.loading import ImageError


@pytest.fixture(scope='module')
def digits(root_dir, tmp_path_factory):
    """16 validation canvases and the single digits of the quickstart."""
    out = tmp_path_factory.mktemp('digits') / 'data'
    subprocess.run([sys.executable, root_dir / 'tools/dataset_converters/digits.py', '--out', out,
                    '--train', '1', '--val', '16', '--cls-copies', '1'], check=True,
                   capture_output=True)
    return out


@pytest.fixture(scope='module')
def detector():
    return mmext.load('digits', device='cpu')


@pytest.fixture(scope='module')
def classifier():
    return mmext.load('digits-cls', device='cpu')


def test_detector_finds_digits(detector, digits):
    """mAP by pycocotools, fed by the plain dicts; the full validation set gives .840 and .837."""
    coco = COCO(digits / 'detection/annotations/instances_val.json')
    results = []
    for image in coco.loadImgs(coco.getImgIds()):
        found, = detector.predict(digits / 'detection/val' / image['file_name'])
        for one in found.as_dict()['objects']:
            results.append(dict(image_id=image['id'], category_id=one['label'] + 1, **{
                key: one[key] for key in ('bbox', 'score', 'segmentation')}))
            assert one['class'] == '0123456789'[one['label']]
    for kind in ('bbox', 'segm'):
        evaluation = COCOeval(coco, coco.loadRes(results), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
        assert evaluation.stats[0] > .75, kind


def test_classifier_reads_digits(classifier, digits):
    """96.9 % on all 359 of them."""
    images = sorted((digits / 'classification/val').rglob('*.png'))[::6]
    right = [found.as_dict()['class'] == file.parent.name
             for file, found in zip(images, classifier.predict(images, 32), strict=True)]
    assert len(right) > 50 and np.mean(right) > .9


def test_every_way_in_is_the_same(detector, classifier, digits, tmp_path):
    path = sorted((digits / 'detection/val').glob('*.png'))[0]
    array = cv2.imread(str(path))
    single = sorted((digits / 'classification/val').rglob('*.png'))[0]
    for model, file, pixels in ((detector, path, array),
                                (classifier, single, cv2.imread(str(single)))):
        by_path, by_str, by_array, by_pil = model.predict(
            [file, str(file), pixels, Image.open(file)])
        for other in (by_str, by_array, by_pil):
            assert other.as_dict() == by_path.as_dict()
        assert model.predict(pixels)[0].as_dict() == by_path.as_dict()
        json.dumps(by_path.as_dict())
    # gray, with alpha, turned by its EXIF tag
    gray = array[..., :1].repeat(3, -1)
    one, two = detector.predict([gray, gray[..., 0]])
    assert one.as_dict() == two.as_dict()
    three, = detector.predict(np.dstack([array, array[..., 0]]))
    assert three.as_dict() == detector.predict(array)[0].as_dict()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(array[..., ::-1]).save(tmp_path / 'turned.png', exif=exif)
    four, = detector.predict(Image.open(tmp_path / 'turned.png'))
    five, = detector.predict(np.ascontiguousarray(np.rot90(array, -1)))
    assert four.as_dict() == five.as_dict()


def test_same_as_the_inferencers(detector, classifier, digits):
    """mmdet's and mmpretrain's own calls, on the same model; batches change nothing here."""
    images = [str(path) for path in sorted((digits / 'detection/val').glob('*.png'))[:5]]
    want = detector.inferencer(images)['predictions']
    for found, raw in zip(detector.predict(images, batch_size=2), want, strict=True):
        boxes = np.array([one['bbox'] for one in found.as_dict()['objects']])
        boxes[:, 2:] += boxes[:, :2]
        np.testing.assert_allclose(boxes, raw['bboxes'], atol=1e-3)
        for one, mask in zip(found.as_dict()['objects'], raw['masks'], strict=True):
            assert coco_mask.iou([one['segmentation']], [mask], [0]).item() > .99
        assert found.sample.img_path in images
    images = [str(path) for path in sorted((digits / 'classification/val').rglob('*.png'))[:5]]
    for found, raw in zip(classifier.predict(images, 3), classifier.inferencer(images),
                          strict=True):
        np.testing.assert_allclose(found.as_dict()['scores'], raw['pred_scores'], atol=1e-5)
        assert found.as_dict()['class'] == raw['pred_class']


def test_drawing(detector, classifier, digits):
    path = sorted((digits / 'detection/val').glob('*.png'))[0]
    found, = detector.predict(path)
    plain = cv2.imread(str(path))[..., ::-1]
    assert found.draw().shape == plain.shape and found.draw().dtype == np.uint8
    assert np.array_equal(found.draw(score_thr=1.1), plain)
    inside = coco_mask.decode(found.as_dict()['objects'][0]['segmentation']).astype(bool)
    assert (found.draw()[inside] != plain[inside]).any(-1).mean() > .9
    single = sorted((digits / 'classification/val').rglob('*.png'))[0]
    assert not np.array_equal(classifier.predict(single)[0].draw(), cv2.imread(str(single)))


def test_config_by_name_options_and_random_weights(tmp_path, digits):
    """A base by name, which DetInferencer cannot build; class names of the config."""
    path = tmp_path / 'mine.py'
    path.write_text("_base_ = 'mmext::quickstart/digits_mask_rcnn.py'\n")
    model = mmext.load(path, device='cpu', options={
        'model.backbone.keep_ratio': .5, 'model.test_cfg.rcnn.score_thr': 0.})
    assert model.classes == tuple('0123456789')
    assert model.cfg.model.backbone.keep_ratio == .5
    found, = model.predict(sorted((digits / 'detection/val').glob('*.png'))[0])
    assert len(found.as_dict()['objects']) > 0


def test_bad_images(detector, tmp_path, digits):
    broken = tmp_path / 'broken.jpg'
    broken.write_bytes(b'no image')
    good = sorted((digits / 'detection/val').glob('*.png'))[0]
    with pytest.raises(ImageError, match=r'broken\.jpg'):
        detector.predict([good, broken])
    left_out = []
    found = list(detector.stream([broken, good, tmp_path / 'absent.png'], 3,
                                 skip=lambda image, error: left_out.append(image)))
    assert [one.image for one in found] == [good]
    assert left_out == [broken, tmp_path / 'absent.png']
    for wrong, message in ((np.zeros((8, 8, 3)), 'float64'), (3.5, 'float'),
                           (np.zeros((2, 3, 8, 8), 'u1'), 'shape')):
        with pytest.raises(ValueError, match=message):
            detector.predict([wrong])
    with pytest.raises(ValueError, match='no images in'):
        (tmp_path / 'empty').mkdir()
        detector.predict(tmp_path / 'empty')


def test_errors_of_the_model_end_the_work(detector, digits, monkeypatch):
    """Out of memory and faults in code are neither retried image by image nor laid to an image."""
    images = sorted((digits / 'detection/val').glob('*.png'))[:3]
    for error in (torch.OutOfMemoryError('CUDA out of memory'), TypeError('a fault in code')):
        calls, skipped = [], []

        def fails(*args, error=error, calls=calls, **kwargs):
            calls.append(1)
            raise error
        monkeypatch.setattr(detector.inferencer, 'forward', fails)
        with pytest.raises(type(error), match=str(error)):
            list(detector.stream(images, 3, skip=lambda *found, to=skipped: to.append(found)))
        assert len(calls) == 1 and not skipped


def test_classifier_takes_any_size(classifier, digits):
    """Also mixed in a batch; twice the pixels of a digit are the same digit."""
    images = [cv2.imread(str(path)) for path in
              sorted((digits / 'classification/val').rglob('*.png'))[::12]]
    large = [cv2.resize(image, (96, 80), interpolation=cv2.INTER_LINEAR) for image in images]
    found = classifier.predict([*images, *large], batch_size=len(images) + 1)
    labels = [one.as_dict()['label'] for one in found]
    same = np.equal(labels[:len(images)], labels[len(images):])
    assert len(same) > 25 and same.mean() > .9


def test_bad_checkpoints(root_dir, tmp_path):
    config = root_dir / 'configs/quickstart/digits_cls.py'
    with pytest.raises(ConfigError, match=r'absent\.pth'):
        mmext.load(config, tmp_path / 'absent.pth')
    torch.save(dict(state_dict=dict(other=torch.ones(1))), tmp_path / 'other.pth')
    with pytest.raises(ValueError, match=r'other\.pth'):
        mmext.load(config, tmp_path / 'other.pth')
    with pytest.raises(ValueError, match='travels with mmext'):
        mmext.load('digits_cls')


def test_panoptic_dict_and_drawing():
    """Segments of mmdet's map: ids, areas, boxes, and nothing where no class is."""
    from mmdet.evaluation import INSTANCE_OFFSET

    from mmext.cli.predictor import _segments
    ids = np.full((4, 6), 3)  # 3 classes: void
    ids[1:3, 2:5] = 1 + INSTANCE_OFFSET
    ids[3] = 2
    found = _segments(ids, 3, 'abc'.__getitem__)
    assert [one['class'] for one in found['segments']] == ['c', 'b']
    assert [one['area'] for one in found['segments']] == [6, 6]
    assert [one['bbox'] for one in found['segments']] == [[0, 3, 6, 1], [2, 1, 3, 2]]
    assert np.array_equal(found['segment_ids'], [
        [0] * 6, [0, 0, 2, 2, 2, 0], [0, 0, 2, 2, 2, 0], [1] * 6])


def test_full_size_detector_by_config_alone(tmp_path):
    cfg = small_config(PAIR)
    cfg.test_dataloader.dataset.pipeline[1].scale = (128, 128)
    torch.save(dict(state_dict=build(cfg).state_dict(), meta={}), tmp_path / 'model.pth')
    model = mmext.load(cfg, tmp_path / 'model.pth', device='cpu')
    assert len(model.classes) == 80  # the data set's class knows them
    found, = model.predict(np.zeros((40, 60, 3), np.uint8))
    assert {one['class'] for one in found.as_dict()['objects']} <= set(model.classes)
