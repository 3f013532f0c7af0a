"""The digits data sets against pycocotools, scikit-learn and their own promises."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import pytest
from pycocotools.coco import COCO
from sklearn.datasets import load_digits

SCRIPT = Path(__file__).resolve().parents[2] / 'tools' / 'dataset_converters' / 'digits.py'
SMALL = ('--train', '12', '--val', '6', '--cls-copies', '1')


def convert(out, *options, ok=True):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), '--out', str(out), *SMALL, *options],
        capture_output=True, text=True)
    assert (done.returncode == 0) == ok, done.stdout + done.stderr
    return done.stdout + done.stderr


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob('*') if p.is_file()}


@pytest.fixture(scope='module')
def digits(tmp_path_factory):
    out = tmp_path_factory.mktemp('data') / 'digits'
    convert(out)
    return out


def coco_of(digits, split):
    return COCO(str(digits / 'detection' / 'annotations' / f'instances_{split}.json'))


def test_same_settings_same_bytes_and_other_seed_differs(digits, tmp_path):
    convert(tmp_path / 'again')
    assert contents(digits) == contents(tmp_path / 'again')
    convert(tmp_path / 'other', '--seed', '1')
    assert contents(digits) != contents(tmp_path / 'other')


def test_second_call_does_nothing_and_other_settings_need_overwrite(digits):
    before = {p: p.stat().st_mtime_ns for p in digits.rglob('*')}
    assert 'nothing to do' in convert(digits)
    assert 'rotation' in convert(digits, '--rotation', '3', ok=False)
    assert before == {p: p.stat().st_mtime_ns for p in digits.rglob('*')}


def test_overwrite_replaces(tmp_path):
    convert(tmp_path / 'digits')
    convert(tmp_path / 'digits', '--train', '3', '--overwrite')
    assert len(list((tmp_path / 'digits' / 'detection' / 'train').iterdir())) == 3
    assert [p.name for p in tmp_path.iterdir()] == ['digits']


def test_folder_of_someone_else_is_left_alone(tmp_path):
    (tmp_path / 'thesis.txt').write_text('precious')
    assert 'not made by this tool' in convert(tmp_path, '--overwrite', ok=False)
    assert [p.name for p in tmp_path.iterdir()] == ['thesis.txt']


@pytest.mark.parametrize('options', [
    ('--digits', '5', '2'), ('--canvas', '40'), ('--val-share', '1'), ('--train', '0')])
def test_bad_options_are_named(tmp_path, options):
    assert options[0] in convert(tmp_path / 'digits', *options, ok=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('signum', [signal.SIGINT, signal.SIGTERM])
def test_interrupt_leaves_nothing(tmp_path, signum):
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), '--out', str(tmp_path / 'digits'), '--train', '100000'],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    part = tmp_path / '.digits.part'
    deadline = time.monotonic() + 60
    while not (part / 'classification').exists() and time.monotonic() < deadline:
        time.sleep(.02)
    assert part.exists() and not (tmp_path / 'digits').exists()
    os.kill(process.pid, signum)
    output = process.communicate(timeout=60)[0].decode()
    assert process.returncode != 0 and 'Traceback' not in output
    assert not list(tmp_path.iterdir())


def test_splits_share_no_digit(digits):
    table = load_digits()
    used = {}
    for split in ('train', 'val'):
        coco = coco_of(digits, split)
        for annotation in coco.anns.values():
            assert annotation['category_id'] - 1 == table.target[annotation['digit']]
        singles = list((digits / 'classification' / split).glob('*/*.png'))
        for path in singles:
            assert int(path.parent.name) == table.target[int(path.stem.split('_')[0])]
        rows = {int(path.stem.split('_')[0]) for path in singles}
        assert {a['digit'] for a in coco.anns.values()} <= rows
        used[split] = rows
    assert not used['train'] & used['val']
    assert len(used['train'] | used['val']) == len(table.target) == 1797
    # the same share of each class, to within half a digit
    counts = np.bincount(table.target)
    val = np.bincount(table.target[sorted(used['val'])])
    assert np.abs(val - .2 * counts).max() <= .5


@pytest.mark.parametrize('split', ['train', 'val'])
def test_coco_annotations(digits, split):
    coco = coco_of(digits, split)
    assert [c['name'] for c in coco.dataset['categories']] == list('0123456789')
    assert len(coco.imgs) == len(list((digits / 'detection' / split).iterdir()))
    for image in coco.imgs.values():
        pixels = cv2.imread(str(digits / 'detection' / split / image['file_name']))
        assert pixels.shape == (image['height'], image['width'], 3) == (128, 128, 3)
        annotations = coco.imgToAnns[image['id']]
        assert 1 <= len(annotations) <= 7
        total = np.zeros(pixels.shape[:2], int)
        for annotation in annotations:
            assert annotation['iscrowd'] == 0
            mask = coco.annToMask(annotation).astype(bool)
            assert mask.sum() == annotation['area'] > 0
            ys, xs = np.nonzero(mask)
            x, y, w, h = annotation['bbox']
            assert (x, y, x + w, y + h) == (xs.min(), ys.min(), xs.max() + 1, ys.max() + 1)
            total += mask
        assert total.max() == 1, 'visible parts cannot overlap'
        # dark ink on light paper: masks and image tell the same story
        gray = pixels.mean(-1)
        assert np.median(gray[total == 1]) < 130 < 170 < np.median(gray[total == 0])
        assert ((gray < 120) & (total == 0)).mean() < .01


@pytest.mark.parametrize('split', ['train', 'val'])
def test_panoptic_annotations(digits, split):
    """Every pixel is in one segment; areas, boxes and label maps by counting pixels."""
    folder = digits / 'panoptic'
    data = json.loads((folder / 'annotations' / f'panoptic_{split}.json').read_text())
    things = [c['name'] for c in data['categories'] if c['isthing']]
    stuff = [c['name'] for c in data['categories'] if not c['isthing']]
    assert things == list('0123456789')
    assert stuff == ['plain paper', 'ruled paper', 'squared paper']
    assert [c['id'] for c in data['categories']] == list(range(1, 14))
    assert len(data['images']) == {'train': 12, 'val': 6}[split]
    for image, annotation in zip(data['images'], data['annotations'], strict=True):
        assert annotation['image_id'] == image['id']
        pixels = cv2.imread(str(folder / split / image['file_name']))
        png = cv2.imread(str(folder / 'annotations' / f'panoptic_{split}' /
                             annotation['file_name'])).astype(int)
        semantic = cv2.imread(str(folder / 'semantic' / split / image['file_name']), -1)
        assert pixels.shape[:2] == png.shape[:2] == semantic.shape == (128, 128)
        ids = png[..., 2] + 256 * png[..., 1] + 256**2 * png[..., 0]
        segments = annotation['segments_info']
        assert sorted(s['id'] for s in segments) == np.unique(ids).tolist()
        assert sum(s['area'] for s in segments) == 128**2
        for segment in segments:
            ys, xs = np.nonzero(ids == segment['id'])
            x, y, w, h = segment['bbox']
            assert (x, y, x + w, y + h) == (xs.min(), ys.min(), xs.max() + 1, ys.max() + 1)
            assert len(ys) == segment['area'] and segment['iscrowd'] == 0
            assert (semantic[ys, xs] == segment['category_id'] - 1).all()
        papers = [s['category_id'] for s in segments if s['category_id'] > 10]
        assert len(set(papers)) == len(papers) in (2, 3)
        gray = pixels.mean(-1)
        assert np.median(gray[semantic < 10]) < 130 < 170 < np.median(gray[semantic >= 10])


def test_ruled_paper_has_lines_and_squared_paper_in_both_directions(tmp_path):
    """Seen without digits: the mean of rows or columns varies only where there are lines."""
    import importlib.util
    spec = importlib.util.spec_from_file_location('digits', SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    spread = np.zeros((3, 2))
    for kind in range(3):
        for seed in range(20):
            gray = module.make_paper(np.random.default_rng(seed), 128, kind).mean(-1)
            for axis in (0, 1):  # differences of neighbors leave stains out
                spread[kind, axis] += np.abs(np.diff(gray.mean(1 - axis))).max() / 20
    assert spread[0].max() < 5 < spread[1, 0] and spread[1, 1] < 5 < spread[2].min()


def test_no_digit_is_mostly_hidden(tmp_path):
    convert(tmp_path / 'crowded', '--digits', '7', '7', '--digit-size', '40', '50')
    convert(tmp_path / 'apart', '--digits', '7', '7', '--digit-size', '40', '50',
            '--min-visible', '1')
    crowded, apart = (
        np.mean([a['area'] for a in coco_of(tmp_path / name, 'train').anns.values()])
        for name in ('crowded', 'apart'))
    assert crowded < apart
    # where nothing may be covered, boxes hold whole digits, 40 to 50 pixels high before turning
    heights = [a['bbox'][3] for a in coco_of(tmp_path / 'apart', 'train').anns.values()]
    assert 30 < np.median(heights) < 60 and min(heights) > 25


def test_classification_images(digits):
    settings = json.loads((digits / 'settings.json').read_text())
    for path in list((digits / 'classification').glob('*/*/*.png'))[::50]:
        image = cv2.imread(str(path))
        assert image.shape == (settings['cls_size'],) * 2 + (3,)
        assert image.std() > 10
