"""The check of panoptic and semantic data: good data pass, each fault has its line."""

import json
import sys

import cv2
import numpy as np
import pytest
from mmengine.config import ConfigDict

from mmext.cli import panoptic_check
from mmext.cli.annotation_check import AnnotationError
from mmext.cli.panoptic_check import (
    check_panoptic_file,
    check_segmentation_cfg,
    check_semantic_maps,
)

CLASSES = ('cat', 'dog', 'grass')


def write_ids(path, ids):
    cv2.imwrite(str(path), np.stack([ids >> 16, ids >> 8 & 255, ids & 255], -1).astype(np.uint8))


@pytest.fixture
def panoptic(tmp_path):
    """Three images of 8 x 12: a cat (id 70,000 + number) on grass (id 7), a column of no segment.

    ``panoptic(change)`` writes the JSON after ``change(data)`` and returns the config.
    """
    (tmp_path / 'seg').mkdir()
    (tmp_path / 'img').mkdir()
    data = dict(images=[], annotations=[], categories=[
        dict(id=10 * i, name=name, isthing=int(i < 2)) for i, name in enumerate(CLASSES)])
    for number in range(3):
        ids = np.full((8, 12), 7)
        ids[:4, :4], ids[:, -1] = 70000 + number, 0
        write_ids(tmp_path / 'seg' / f'{number}.png', ids)
        (tmp_path / 'img' / f'{number}.jpg').touch()
        data['images'].append(dict(id=number, file_name=f'{number}.jpg', width=12, height=8))
        data['annotations'].append(dict(
            image_id=number, file_name=f'{number}.png', segments_info=[
                dict(id=70000 + number, category_id=0, bbox=[0, 0, 4, 4], area=16, iscrowd=0),
                dict(id=7, category_id=20, bbox=[0, 0, 11, 8], area=72, iscrowd=0)]))

    def write(change=lambda data: None, classes=CLASSES, things=2, stuff=1):
        change(data)
        (tmp_path / 'ann.json').write_text(json.dumps(data))
        dataset = dict(
            type='CocoPanopticDataset', data_root=str(tmp_path), ann_file='ann.json',
            data_prefix=dict(img='img', seg='seg'), metainfo=dict(classes=classes),
            pipeline=[dict(type='LoadPanopticAnnotations')])
        heads = dict(num_things_classes=things, num_stuff_classes=stuff)
        return ConfigDict(
            model=dict(semantic_head=heads, panoptic_fusion_head=heads),
            train_dataloader=dict(dataset=dict(type='RepeatDataset', times=2, dataset=dataset)),
            val_dataloader=dict(dataset=dataset),
            val_evaluator=dict(type='CocoPanopticMetric'))

    return write


def test_good_panoptic_data_pass(panoptic):
    reports = check_segmentation_cfg(panoptic())
    assert [report['read'] for report in reports] == [3, 3]
    assert reports[0]['images'] == 3 and reports[0]['segments'] == 6
    assert reports[0]['warnings'] == []


def refused(cfg, match):
    with pytest.raises(AnnotationError, match=match) as error:
        check_segmentation_cfg(cfg)
    assert len(str(error.value).splitlines()) == 2, 'one line each for train and val'
    return str(error.value)


def test_missing_png_is_named(panoptic, tmp_path):
    (tmp_path / 'seg' / '1.png').unlink()
    refused(panoptic(), r"train_dataloader\.dataset\.dataset: .*1 of 3 panoptic PNGs are not in "
                        r".*seg': 1\.png; set data_prefix\.seg")


def test_unreadable_png_is_named(panoptic, tmp_path):
    (tmp_path / 'seg' / '1.png').write_bytes(b'no image')
    refused(panoptic(), r'1 of the 3 PNGs read cannot be read as an image \(1\.png\)')


def test_unknown_and_absent_ids_of_a_png(panoptic, tmp_path):
    ids = np.full((8, 12), 7)
    ids[:4, :4] = 70001
    ids[0, 0] = 513
    write_ids(tmp_path / 'seg' / '1.png', ids)
    refused(panoptic(), r'1 of the 3 PNGs read have segment ids that the JSON does not know '
                        r'\(1\.png: 513\)')
    write_ids(tmp_path / 'seg' / '1.png', np.full((8, 12), 7))
    refused(panoptic(), r'lack segment ids of the JSON \(1\.png: 70001\)')


def test_png_of_another_size(panoptic, tmp_path):
    write_ids(tmp_path / 'seg' / '2.png', np.full((12, 8), 7))
    with pytest.raises(AnnotationError, match=r'another size than their image \(2\.png: 8 x 12\)'):
        check_segmentation_cfg(panoptic())


def test_unknown_category_image_and_class(panoptic):
    def change(data):
        data['annotations'][0]['segments_info'][0]['category_id'] = 99
    refused(panoptic(change), 'segments have category ids that it does not list: 99')

    def repair(data):
        change(data)
        data['annotations'][0]['segments_info'][0]['category_id'] = 0
        data['annotations'].append(dict(image_id=8, file_name='8.png', segments_info=[]))
    refused(panoptic(repair), '1 annotations belong to no listed image: 8')


def test_class_names_and_counts(panoptic):
    refused(panoptic(classes=('cat', 'dogs', 'grass')), "did you mean 'dog'")
    refused(panoptic(stuff=53), r'it has 2 things and 1 stuff classes but the config has '
                                r'model\.semantic_head\.num_stuff_classes=53, model\.panoptic')


def test_things_come_before_stuff(panoptic):
    refused(panoptic(lambda data: data['categories'].reverse(), classes=CLASSES[::-1]),
            'list all things before all stuff')


def test_no_panoptic_file(panoptic, tmp_path):
    cfg = panoptic(lambda data: data['annotations'][0].pop('segments_info'))
    with pytest.raises(AnnotationError, match=r"no COCO panoptic file.*lacks \['segments_info'\]"):
        check_segmentation_cfg(cfg)
    with pytest.raises(AnnotationError, match='does not exist'):
        check_panoptic_file(str(tmp_path / 'none.json'), None)


def test_samples_are_spread(panoptic, tmp_path):
    panoptic()
    found = check_panoptic_file(str(tmp_path / 'ann.json'), str(tmp_path / 'seg'), samples=2)
    assert found['read'] == 2
    assert panoptic_check.spread(range(10), 3) == [0, 3, 6]
    assert panoptic_check.spread(range(2), 3) == [0, 1]


def test_missing_package_comes_first(panoptic, monkeypatch):
    monkeypatch.setitem(sys.modules, 'panopticapi', None)
    real = panoptic_check.importlib.util.find_spec
    monkeypatch.setattr(panoptic_check.importlib.util, 'find_spec',
                        lambda name: None if name == 'panopticapi' else real(name))
    with pytest.raises(AnnotationError, match=r"LoadPanopticAnnotations.*panopticapi.*"
                                              r"pip install 'mmext\[panoptic\]'"):
        check_segmentation_cfg(panoptic())


# ------------------------------------------------------------------------------------- semantic


@pytest.fixture
def semantic(tmp_path):
    """Images a and below/b with label maps; ``semantic(a, b)`` writes these maps."""

    def write(*maps, count=3, suffix='.png', zero=False):
        for name, labels in zip(('a', 'below/b'), maps, strict=True):
            for folder in ('img', 'map'):
                (tmp_path / folder / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / 'img' / f'{name}.jpg').touch()
            cv2.imwrite(str(tmp_path / 'map' / f'{name}.png'), np.asarray(labels, np.uint8))
        dataset = dict(
            type='BaseSegDataset', data_root=str(tmp_path), seg_map_suffix=suffix,
            data_prefix=dict(img_path='img', seg_map_path='map'), metainfo=dict(classes=CLASSES),
            pipeline=[dict(type='LoadAnnotations', with_seg=True, reduce_zero_label=zero)])
        return ConfigDict(
            model=dict(semantic_head=dict(num_things_classes=0, num_stuff_classes=count)),
            train_dataloader=dict(dataset=dataset), val_dataloader=dict(dataset=dataset))

    return write


GOOD = [[0, 1], [2, 255]]


def test_good_label_maps_pass(semantic):
    reports = check_segmentation_cfg(semantic(GOOD, GOOD))
    assert [(report['images'], report['read']) for report in reports] == [(2, 2)] * 2
    check_segmentation_cfg(semantic(GOOD, [[3, 1], [2, 0]], zero=True))


def test_labels_out_of_range(semantic):
    refused(semantic(GOOD, [[0, 1], [2, 3]]),
            r'1 of the 2 label maps read have labels out of range \(known are 0 to 2, and 255 to '
            r'ignore\) \(below/b: 3\)')
    refused(semantic(GOOD, [[4, 1], [2, 3]], zero=True), r'known are 1 to 3.*below/b: 4')


def test_missing_and_colored_maps(semantic, tmp_path):
    refused(semantic(GOOD, np.zeros((2, 2, 3))), r'color images.*\(below/b\)')
    refused(semantic(GOOD, GOOD, suffix='.tif'), r'2 of 2 label maps are missing: a\.tif')
    (tmp_path / 'map/a.png').unlink()
    with pytest.raises(AnnotationError, match=r'1 of 2 label maps are missing: a\.png'):
        cfg = semantic(GOOD, GOOD)
        (tmp_path / 'map/a.png').unlink()
        check_segmentation_cfg(cfg)


def test_number_of_classes(semantic):
    refused(semantic(GOOD, GOOD, count=4), r'0 things and 3 stuff classes but the config has '
                                           r'model\.semantic_head\.num_stuff_classes=4')


def test_no_images_or_names(tmp_path):
    report = check_semantic_maps(str(tmp_path), None, ())
    assert len(report['errors']) == 2
    assert "ends in '.jpg'" in report['errors'][1]
