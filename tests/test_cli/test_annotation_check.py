"""The check of annotation files, against what mmdet really does with them."""

import copy
import json
import os

import pytest
from mmengine.config import ConfigDict

from mmext.cli.annotation_check import AnnotationError, check_coco_file, check_dataset_cfg

CLASSES = ('cat', 'dog')


def coco():
    square = [[10, 10, 30, 10, 30, 30, 10, 30]]
    ann = dict(bbox=[10, 10, 20, 20], area=400, iscrowd=0, segmentation=square)
    return dict(
        images=[dict(id=i, file_name=f'{i}.jpg', width=64, height=48) for i in range(4)],
        categories=[dict(id=3, name='cat'), dict(id=7, name='dog')],
        annotations=[
            dict(ann, id=1, image_id=0, category_id=3),
            dict(ann, id=2, image_id=0, category_id=7),
            dict(ann, id=3, image_id=1, category_id=7),
            dict(ann, id=4, image_id=2, category_id=3, iscrowd=1),
        ])


@pytest.fixture
def write(tmp_path):

    def write(data, images=4):
        for i in range(images):
            (tmp_path / f'{i}.jpg').touch()
        (tmp_path / 'ann.json').write_text(json.dumps(data))
        return str(tmp_path / 'ann.json')

    return write


def config(ann_file, classes=CLASSES, num_classes=2, metric=('bbox', 'segm'), mask=True):
    dataset = dict(
        type='RepeatDataset', times=2,
        dataset=dict(type='CocoDataset', ann_file=ann_file,
                     data_prefix=dict(img=ann_file.rsplit('/', 1)[0]),
                     metainfo=dict(classes=classes)))
    roi_head = dict(bbox_head=[dict(num_classes=num_classes)] * 2)
    if mask:
        roi_head['mask_head'] = dict(num_classes=num_classes)
    return ConfigDict(
        model=dict(rpn_head=dict(num_classes=1), roi_head=roi_head),
        train_dataloader=dict(dataset=dataset),
        val_evaluator=dict(type='CocoMetric', metric=list(metric)))


def test_counts_of_a_small_file(write, tmp_path):
    report = check_coco_file(write(coco()), CLASSES, str(tmp_path), masks=True, train=True)
    assert report['errors'] == []
    assert report['warnings'] == ['1 images have crowd annotations only']
    expected = dict(images=4, annotations=4, usable=3, crowd=1, empty_images=1,
                    crowd_only_images=1, without_mask=0, degenerate=0, orphans=0,
                    missing_images=0, other_classes=0, per_class=dict(cat=1, dog=2))
    assert {key: report[key] for key in expected} == expected


def test_coco_mini_is_clean(shared_dir):
    from mmdet.datasets import CocoDataset
    root = shared_dir / 'data' / 'coco_mini'
    for split, images, annotations in (('train', 64, 470), ('val', 42, 366)):
        report = check_coco_file(
            str(root / f'annotations/instances_{split}2017.json'),
            CocoDataset.METAINFO['classes'], str(root / f'{split}2017'), True, True)
        assert report['errors'] == []
        assert (report['images'], report['annotations']) == (images, annotations)


def test_counts_equal_what_mmdet_loads(shared_dir):
    from mmdet.datasets import CocoDataset
    root = shared_dir / 'data' / 'coco_mini'
    ann_file = str(root / 'annotations/instances_train2017.json')
    dataset = CocoDataset(ann_file=ann_file, data_prefix=dict(img=''), pipeline=[])
    instances = [one for info in dataset.load_data_list() for one in info['instances']]
    report = check_coco_file(ann_file)
    assert report['usable'] == sum(not one['ignore_flag'] for one in instances)
    assert report['crowd'] == sum(one['ignore_flag'] for one in instances)
    labels = [one['bbox_label'] for one in instances if not one['ignore_flag']]
    names = CocoDataset.METAINFO['classes']
    assert report['per_class'] == {name: labels.count(i) for i, name in enumerate(names)}


def test_order_of_classes_is_the_trap_it_claims(write):
    """mmdet numbers labels by the file whatever the config says."""
    from mmdet.datasets import CocoDataset
    ann_file = write(coco())
    swapped = ('dog', 'cat')
    infos = CocoDataset(ann_file=ann_file, metainfo=dict(classes=swapped),
                        data_prefix=dict(img=''), pipeline=[]).load_data_list()
    first = infos[0]['instances'][0]  # a cat
    assert swapped[first['bbox_label']] == 'dog'
    with pytest.raises(AnnotationError, match="label 0 would be called 'dog' but is 'cat'"):
        check_dataset_cfg(config(ann_file, swapped), ['train'])


def broken(**changes):
    data = copy.deepcopy(coco())
    for key, change in changes.items():
        change(data[key])
    return data


def each(**values):
    return lambda entries: [entry.update(values) for entry in entries]


@pytest.mark.parametrize('data, message', [
    (broken(annotations=each(iscrowd=1)), '4 are crowd'),
    (broken(annotations=each(bbox=[70, 10, 5, 5])), '4 have no extent'),
    (broken(annotations=each(area=0)), '4 have no extent'),
    (broken(annotations=each(image_id=99)), '4 belong to no listed image'),
    (broken(annotations=list.clear), 'none of its 0 annotations'),
    (broken(annotations=each(segmentation=[])), 'no annotation has a segmentation'),
    (broken(annotations=each(id=5)), 'annotations share one id'),
    (broken(images=each(id=0)), 'images share one id'),
    (broken(images=list.clear), 'no images'),
    (broken(images=lambda images: images.append(
        dict(id=9, file_name='sub/9.jpg', width=4, height=4))), '1 of 5 images are not in'),
    (broken(categories=each(name='cat')), 'categories share one name'),
])
def test_one_clear_error(write, data, message):
    with pytest.raises(AnnotationError, match=message):
        check_dataset_cfg(config(write(data)), ['train'])


@pytest.mark.parametrize('kwargs, message', [
    (dict(classes=('cat', 'dogs')), "lacks 1 of the 2 classes.*'dogs'.*did you mean 'dog'"),
    (dict(classes='cat'), r"one class alone is written \('cat',\)"),
    (dict(num_classes=80), r'2 classes but the model has .*bbox_head\[0\].num_classes=80'),
])
def test_config_against_file(write, kwargs, message):
    with pytest.raises(AnnotationError, match=message):
        check_dataset_cfg(config(write(coco()), **kwargs), ['train'])


def test_mask_metric_without_mask_head(write):
    ann_file = write(coco())
    with pytest.raises(AnnotationError, match="set metric='bbox'"):
        check_dataset_cfg(config(ann_file, mask=False), ['train', 'val'])
    check_dataset_cfg(config(ann_file, mask=False, metric=['bbox']), ['train', 'val'])


def test_missing_classes_are_silent_in_mmdet(write):
    """What the check protects from: no error there, and no ground truth."""
    from mmdet.datasets import CocoDataset
    infos = CocoDataset(ann_file=write(coco()), metainfo=dict(classes=('Cat', 'Dog')),
                        data_prefix=dict(img=''), pipeline=[]).load_data_list()
    assert not any(info['instances'] for info in infos)


def test_not_coco(tmp_path):
    path = tmp_path / 'a.json'
    for text, message in [('{', 'is not JSON'), ('[]', 'lacks the lists'),
                          (json.dumps(dict(coco(), images=[dict(id=3)])), 'entry 3 of .images')]:
        path.write_text(text)
        with pytest.raises(AnnotationError, match=message):
            check_coco_file(str(path))
    with pytest.raises(AnnotationError, match='does not exist'):
        check_coco_file(str(tmp_path / 'b.json'))


def test_other_processes_and_formats_are_left_alone(write, monkeypatch):
    cfg = config(write(broken(annotations=list.clear)))
    monkeypatch.setenv('RANK', '1')
    assert check_dataset_cfg(cfg, ['train']) == []
    monkeypatch.setenv('RANK', '0')
    cfg.train_dataloader.dataset.dataset.type = 'VOCDataset'
    assert check_dataset_cfg(cfg, ['train']) == []


def test_lvis_files_are_read(write):
    """LVIS v1 has coco_url in place of file_name; mmdet looks for its last two parts."""
    def change(data):
        for image in data['images']:
            name = image.pop('file_name')
            image['coco_url'] = f'http://images.cocodataset.org/train2017/{name}'
    data = coco()
    change(data)
    cfg = config(write(data))
    cfg.train_dataloader.dataset.dataset.type = 'LVISV1Dataset'
    with pytest.raises(AnnotationError, match=r'4 of 4 images are not in .*: train2017/0\.jpg'):
        check_dataset_cfg(cfg, ['train'])
    folder = cfg.train_dataloader.dataset.dataset.data_prefix.img
    os.makedirs(f'{folder}/train2017')
    for i in range(4):
        os.rename(f'{folder}/{i}.jpg', f'{folder}/train2017/{i}.jpg')
    assert check_dataset_cfg(cfg, ['train'])[0]['images'] == 4
