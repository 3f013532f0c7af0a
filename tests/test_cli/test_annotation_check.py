"""The check of annotation files, against what mmdet really does with them."""

import copy
import json
import os
import re

import numpy as np
import pytest
from mmengine.config import ConfigDict
from PIL import Image
from pycocotools import mask as coco_mask

from mmext.cli.annotation_check import AnnotationError, check_coco_file, check_dataset_cfg
from mmext.cli.coco_fields import SHOWN, compressed_runs

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
                    crowd_only_images=1, without_mask=0, degenerate=0, missing_images=0,
                    other_classes=0, per_class=dict(cat=1, dog=2))
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
    (broken(annotations=each(image_id=99)), 'annotation 4: image_id 99 belongs to no listed'),
    (broken(annotations=list.clear), 'none of its 0 annotations'),
    (broken(annotations=each(segmentation=[])), 'annotation 2: has no segmentation'),
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
                          ('[' * 100_000, 'is not JSON')]:
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


# every field

def first(key, **values):
    return broken(**{key: lambda entries: entries[0].update(values)})


def without(key, name):
    return broken(**{key: lambda entries: entries[0].pop(name)})


RLE = dict(size=[48, 64], counts=[100, 72, 48 * 64 - 172])
TEXT = coco_mask.frPyObjects(RLE, 48, 64)['counts'].decode()
FAULTS = [
    (first('annotations', segmentation=[[1, 2, 30, 40]]), 'annotation 1: .* has 4 numbers'),
    (first('annotations', segmentation=[[1, 2, 9, 9, 3, 9, 4]]), 'annotation 1: .* has 7 numbers'),
    (first('annotations', segmentation=[[10, 10, 30, 10, 30, 30], [1, 2]]), 'has 2 numbers'),
    (first('annotations', segmentation=[[]]), 'has 0 numbers'),
    (first('annotations', segmentation=[10, 10, 30, 10, 30, 30]), 'must be a list of polygons'),
    (first('annotations', segmentation=[[10, 10, 30, 10, 30, float('nan')]]), 'finite numbers'),
    (first('annotations', segmentation=[[10, 10, 30, 10, 30, None]]), 'finite numbers'),
    (first('annotations', segmentation=[[10, 10, 30, 10, 30, '30']]), 'finite numbers'),
    (first('annotations', segmentation=[[10, 10, 30, 10, 30, 10**400]]), 'finite numbers'),
    (first('annotations', segmentation=[[10, 10, 30, 10, 30, 3000]]), 'far outside'),
    (first('annotations', segmentation=[[10, 10, 20, 20, 30, 30]]), 'encloses no pixel'),
    (first('annotations', segmentation=[[-20, 5, -5, 5, -5, 20]]), 'encloses no pixel'),
    (first('annotations', segmentation='mask'), 'neither a list of polygons'),
    (first('annotations', segmentation=None), 'has no segmentation'),
    (first('annotations', segmentation=dict(RLE, size=[64, 48])), r'not that of its image.*\[48, '),
    (first('annotations', segmentation=dict(RLE, size=None)), 'not that of its image'),
    (first('annotations', segmentation=dict(size=[48, 64])), 'counts None are neither'),
    (first('annotations', segmentation=dict(RLE, counts=[100, 72])), 'sum up to 172 but .* 3072'),
    (first('annotations', segmentation=dict(RLE, counts=[-1, 1, 3072])), 'negative run'),
    (first('annotations', segmentation=dict(RLE, counts=[3072])), 'encloses no pixel'),
    (first('annotations', segmentation=dict(RLE, counts=TEXT[:-1])), 'annotation 1:.*encode the'),
    (first('annotations', segmentation=dict(RLE, counts=TEXT + 'P')), 'annotation 1:.*encode the'),
    (first('annotations', segmentation=dict(RLE, counts='\u20ac')), 'annotation 1:.*encode the'),
    (first('annotations', iscrowd=None), 'annotation 1: iscrowd None must be 0'),
    (first('annotations', iscrowd=True), 'annotation 1: iscrowd True must be 0'),
    (first('annotations', id=0), r'annotations\[0\]: id 0 must be a positive'),
    (first('annotations', id='1'), "id '1' must be a positive"),
    (first('annotations', id=2**63), 'must be a positive integer'),
    (first('annotations', id=1.0), 'id 1.0 must be a positive'),
    (first('annotations', image_id='0'), "image_id '0' belongs to no listed image"),
    (first('annotations', category_id=5), 'category_id 5 belongs to no listed category'),
    (first('annotations', bbox=[10, 10, None, 20]), 'must be 4 finite numbers'),
    (first('annotations', bbox=[10, 10, 20]), 'must be 4 finite numbers'),
    (first('annotations', bbox=[10, 10, float('inf'), 20]), 'must be 4 finite numbers'),
    (first('annotations', bbox=[30, 30, -20, -20]), 'negative width'),
    (first('annotations', bbox=[10, 10, 2000, 20]), 'far outside'),
    (first('annotations', area=None), 'area None must be a number'),
    (first('annotations', area='400'), "area '400' must be a number"),
    (first('annotations', area=0), 'annotation 1: area 0 although'),
    (first('annotations', area=1e11), 'must be a number of square pixels'),
    (without('annotations', 'area'), 'area is absent'),
    (without('annotations', 'bbox'), 'bbox is absent'),
    (without('annotations', 'id'), 'id is absent'),
    (first('categories', id=7), "category 'dog': its id 7 is that of another"),
    (first('categories', id=None), "categories.0. .'cat'.: id None is no integer"),
    (first('categories', name=3), 'name 3 is no text'),
    (first('images', height=None), 'image 0: height None is no positive integer'),
    (first('images', width=64.0), 'image 0: width 64.0 is no positive integer'),
    (first('images', file_name='../0.jpg'), "image 0: file_name '../0.jpg' leaves the image fol"),
    (first('images', file_name='/etc/0.jpg'), 'leaves the image folder'),
    (first('images', file_name=''), 'image 0: file_name .* is no text'),
    (first('images', id=True), 'id True is no integer'),
    (dict(coco(), annotations=[1, 2]), r'annotations\[0\] is 1, no object'),
]


@pytest.mark.parametrize('data, message', FAULTS)
def test_each_field(write, data, message):
    path = write(data)  # json writes NaN and Infinity as most tools do
    report = check_coco_file(path, CLASSES, masks=True, train=True)
    assert any(re.search(message, error) for error in report['errors']), report


def test_missing_iscrowd_counts_where_it_is_evaluated(write):
    path = write(without('annotations', 'iscrowd'))
    assert check_coco_file(path, CLASSES, masks=True, train=True)['errors'] == []
    errors = check_coco_file(path, CLASSES, masks=True, evaluated=True)['errors']
    assert errors == ['annotation 1: iscrowd is absent: must be 0 (one object) or 1 (a group, left '
                      'out of the evaluation)']


def test_many_faults_are_counted(write):
    data = coco()
    data['annotations'] = [
        dict(data['annotations'][0], id=i + 1, iscrowd=None, segmentation=[[1, 2]])
        for i in range(123)]
    errors = check_coco_file(write(data), CLASSES, masks=True, evaluated=True)['errors']
    assert len(errors) == SHOWN + 1
    assert errors[-1] == 'and more: 113 x iscrowd, 113 x polygon of less than three points'


def test_compressed_runs_are_those_of_pycocotools():
    rng = np.random.default_rng(0)
    masks = [rng.random((37, 53)) < p for p in rng.uniform(0, 1, 60)]
    masks += [np.zeros((300, 400), bool), np.ones((300, 400), bool), np.eye(500, dtype=bool)]
    texts = [coco_mask.encode(np.asfortranarray(m, np.uint8))['counts'].decode() for m in masks]
    for mask, runs in zip(masks, compressed_runs(texts), strict=True):
        flat = mask.T.ravel()
        assert np.array_equal(np.repeat(np.arange(len(runs)) % 2, runs), flat)
    assert compressed_runs(['', 'o', 'o' * 9, ' ', '~']) == [None] * 5


def test_size_and_orientation_of_the_files(write, tmp_path):
    data = coco()
    path = write(data)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new('RGB', (64, 48)).save(tmp_path / '0.jpg')
    Image.new('RGB', (48, 64)).save(tmp_path / '1.jpg', exif=exif)  # seen as 64 x 48
    assert check_coco_file(path, CLASSES, str(tmp_path), True, True)['errors'] == []
    Image.new('RGB', (96, 64)).save(tmp_path / '1.jpg')
    exif[0x0112] = 3
    Image.new('RGB', (64, 48)).save(tmp_path / '2.jpg', exif=exif)
    errors = check_coco_file(path, CLASSES, str(tmp_path), True, True)['errors']
    assert len(errors) == 2
    assert 'image 1: 1.jpg has 96 x 64 pixels but the annotation file says 64 x 48' in errors[0]
    assert 'image 2: 2.jpg has the EXIF orientation 3' in errors[1]


def evaluated(ann_file, evaluator_file, **metric):
    cfg = config(ann_file)
    dataset = cfg.train_dataloader.dataset.dataset
    return ConfigDict(
        model=cfg.model, val_dataloader=dict(dataset=dataset),
        val_evaluator=dict(type='CocoMetric', ann_file=evaluator_file, metric=['bbox', 'segm'],
                           **metric))


def test_ground_truth_of_the_evaluator_is_that_of_the_data(write, tmp_path):
    ann_file = write(coco())
    check_dataset_cfg(evaluated(ann_file, ann_file), ['val'])
    other = tmp_path / 'other.json'
    for data, message in [
            (broken(images=lambda images: images.pop()), '0 images that the data set .* lacks, and '
             'lacks 1 of its 4'),
            (broken(categories=list.reverse), "label 0 would be called 'cat' but is 'dog'"),
            (first('categories', id=4), 'other categories'),
            (first('annotations', id=0), 'must be a positive integer'),
            (without('annotations', 'iscrowd'), 'iscrowd is absent')]:
        other.write_text(json.dumps(data))
        with pytest.raises(AnnotationError, match=message):
            check_dataset_cfg(evaluated(ann_file, str(other)), ['val'])


def test_a_test_split_without_ground_truth(write):
    data = coco()
    del data['annotations']
    ann_file = write(data)
    check_dataset_cfg(evaluated(ann_file, ann_file, format_only=True, outfile_prefix='x'), ['val'])
    with pytest.raises(AnnotationError, match='lacks the lists'):
        check_dataset_cfg(evaluated(ann_file, ann_file), ['val'])
    ann_file = write(dict(data, annotations=[]))
    with pytest.raises(AnnotationError, match='write predictions only: format_only=True'):
        check_dataset_cfg(evaluated(ann_file, ann_file), ['val'])


def test_masks_that_the_pipeline_does_not_load(write):
    cfg = config(write(coco()))
    cfg.train_dataloader.dataset.dataset.pipeline = [dict(type='LoadAnnotations', with_bbox=True)]
    with pytest.raises(AnnotationError, match='set with_mask=True'):
        check_dataset_cfg(cfg, ['train'])


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
