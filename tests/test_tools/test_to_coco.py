"""LabelMe and YOLO folders to COCO, against what was drawn; a split by image."""

import importlib.util
import json

import cv2
import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco_mask

from mmext.cli.annotation_check import check_coco_file
from mmext.cli.config_check import ConfigError


@pytest.fixture
def tool(root_dir):

    def load(name):
        path = root_dir / 'tools' / 'dataset_converters' / name
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def drawn(points, size):
    mask = np.zeros(size, np.uint8)
    cv2.fillPoly(mask, [np.round(points).astype(np.int32)], 1)
    return mask


TRIANGLE = np.array([[10, 8], [50, 12], [30, 40]])
HOUSE = np.array([[5, 5], [25, 5], [25, 25], [15, 35], [5, 25]])


def shape(label, points, kind='polygon', group=None):
    return dict(label=label, points=np.asarray(points).tolist(), shape_type=kind, group_id=group)


def write_labelme(root):
    folder = root / 'a folder'
    folder.mkdir(parents=True)
    Image.new('RGB', (64, 48)).save(folder / 'x.png')
    Image.new('RGB', (64, 48)).save(root / 'y.png')
    (folder / 'x.json').write_text(json.dumps(dict(
        imagePath='..\\a folder\\x.png', imageWidth=64, imageHeight=48, shapes=[
            shape('dog', TRIANGLE), shape('cat', [[40, 30], [10, 20]], 'rectangle'),
            shape('cat', HOUSE, group=1), shape('cat', HOUSE + (30, 5), group=1),
            shape('dog', [[1, 1]], 'point')])))
    (root / 'y.json').write_text(json.dumps(dict(
        imagePath='y.png', imageWidth=64, imageHeight=48, shapes=[])))


def test_labelme(tool, tmp_path, capsys):
    pytest.importorskip('supervision')
    write_labelme(tmp_path)
    out = tmp_path / 'out.json'
    for _ in range(2):  # its own output among the labels is no label
        assert tool('to_coco.py').main(
            ['labelme', str(tmp_path), str(out), '--overwrite']) == 0
    assert 'point' in capsys.readouterr().err
    report = check_coco_file(str(out), ('cat', 'dog'), str(tmp_path), masks=True, train=True,
                             evaluated=True)
    assert report['errors'] == [] and report['per_class'] == {'cat': 2, 'dog': 1}
    coco = json.loads(out.read_text())
    assert [image['file_name'] for image in coco['images']] == ['a folder/x.png', 'y.png']
    masks = {tuple(one['bbox']): coco_mask.decode(one['segmentation'])
             for one in coco['annotations']}
    size = (48, 64)
    expected = {(10, 8, 40, 32): drawn(TRIANGLE, size),
                (10, 20, 30, 10): drawn(np.array([[10, 20], [40, 20], [40, 30], [10, 30]]), size),
                (5, 5, 50, 35): drawn(HOUSE, size) | drawn(HOUSE + (30, 5), size)}
    assert masks.keys() == expected.keys()
    for box, mask in expected.items():
        assert np.array_equal(masks[box], mask), box
    assert all(one['iscrowd'] == 0 for one in coco['annotations'])  # two parts are no crowd


def test_yolo(tool, tmp_path):
    pytest.importorskip('supervision')
    images, labels = tmp_path / 'images' / 'train', tmp_path / 'labels' / 'train'
    images.mkdir(parents=True)
    labels.mkdir(parents=True)
    for name in 'xyz':
        Image.new('RGB', (64, 48)).save(images / f'{name}.png')
    (labels / 'x.txt').write_text('1 0.5 0.5 0.25 0.5\n0 0.25 0.25 0.5 0.5\n')
    flat = (TRIANGLE / (64, 48)).ravel()
    (labels / 'y.txt').write_text('0 ' + ' '.join(f'{v:.6f}' for v in flat) + '\n')
    (tmp_path / 'data.yaml').write_text('names: {0: cat, 1: dog, 2: owl}\n')
    out = tmp_path / 'out.json'
    arguments = ['yolo', str(images.parent), str(out), '--labels', str(labels.parent), '--data',
                 str(tmp_path / 'data.yaml')]
    assert tool('to_coco.py').main(arguments) == 0
    coco = json.loads(out.read_text())
    assert [one['name'] for one in coco['categories']] == ['cat', 'dog', 'owl']
    assert [one['file_name'] for one in coco['images']] == [f'train/{n}.png' for n in 'xyz']
    boxes = [(one['category_id'], one['bbox']) for one in coco['annotations']]
    assert boxes == [(2, [24, 12, 16, 24]), (1, [0, 0, 32, 24]), (1, [10, 8, 40, 32])]
    assert 'segmentation' not in coco['annotations'][0]
    assert np.array_equal(coco_mask.decode(coco['annotations'][2]['segmentation']),
                          drawn(TRIANGLE, (48, 64)))
    for text, message in [('7 0.5 0.5 0.2 0.2', r'x\.txt: it has a class 7 but .* names 3'),
                          ('1 0.5 0.5', r'x\.txt: .*at least 5'), ('a 1 1 1 1', r'x\.txt: ')]:
        (labels / 'x.txt').write_text(text)
        with pytest.raises(ConfigError, match=message):
            tool('to_coco.py').main([*arguments, '--overwrite'])


@pytest.mark.parametrize('change, message', [
    (dict(imagePath='/etc/other.png'), "its image .*other.png' does not exist"),
    (dict(imageWidth=48, imageHeight=64), 'drawn on 48 x 64 pixels but x.png has 64 x 48'),
    (dict(shapes=[shape('a', [[1, 1], [2, 2]])]), r'x\.json: .*at least 3'),
])
def test_labelme_faults(tool, tmp_path, change, message):
    pytest.importorskip('supervision')
    write_labelme(tmp_path)
    path = tmp_path / 'a folder' / 'x.json'
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ConfigError, match=message):
        tool('to_coco.py').main(['labelme', str(tmp_path), str(tmp_path / 'out.json')])
    assert not (tmp_path / 'out.json').exists()


def test_without_supervision(tool, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__('sys').modules, 'supervision.dataset.formats', None)
    with pytest.raises(ConfigError, match=r"pip install 'mmext\[convert\]'"):
        tool('to_coco.py').main(['labelme', str(tmp_path), str(tmp_path / 'out.json')])


def small_coco():
    return dict(
        images=[dict(id=i, file_name=f'{i}.png', height=9, width=9) for i in range(10)],
        categories=[dict(id=1, name='cat')],
        annotations=[dict(id=i + 1, image_id=i % 9, category_id=1, bbox=[0, 0, 3, 3], area=9,
                          iscrowd=0) for i in range(30)] + [
            dict(id=99, image_id=77, category_id=1), dict(id=98, image_id=1, category_id=5)])


def test_split_by_image(tool, tmp_path):
    (tmp_path / 'all.json').write_text(json.dumps(small_coco()))
    parts = []
    for seed in ('0', '0', '1'):
        tool('coco_subset.py').main([str(tmp_path / 'all.json'), str(tmp_path / 'train.json'),
                                     '--split', f'{tmp_path / "val.json"}=0.3', '--seed', seed,
                                     '--overwrite'])
        parts.append([json.loads((tmp_path / f'{name}.json').read_text())
                      for name in ('train', 'val')])
    assert parts[0] == parts[1] != parts[2]
    train, val = parts[0]
    ids = [{image['id'] for image in part['images']} for part in (train, val)]
    assert (len(ids[0]), len(ids[1])) == (7, 3) and ids[0] | ids[1] == set(range(10))
    for part, own in zip((train, val), ids, strict=True):
        assert [one['id'] for one in part['annotations']] == [
            i + 1 for i in range(30) if i % 9 in own]


@pytest.mark.parametrize('share', ['val.json', 'val.json=2', 'val.json=0', '=0.5'])
def test_split_errors(tool, tmp_path, share, capsys):
    with pytest.raises(SystemExit):
        tool('coco_subset.py').main(['a.json', 'b.json', '--split', share])
    assert '--split' in capsys.readouterr().err


@pytest.mark.parametrize('name', ['../out.png', '/tmp/out.png', 'a/../../out.png', 'C:\\out.png'])
def test_copies_stay_in_their_folder(tool, tmp_path, name):
    data = small_coco()
    data['images'][0]['file_name'] = name
    (tmp_path / 'all.json').write_text(json.dumps(data))
    for i in range(10):
        Image.new('RGB', (9, 9)).save(tmp_path / f'{i}.png')
    with pytest.raises(SystemExit, match='leads out of'):
        tool('coco_subset.py').main([
            str(tmp_path / 'all.json'), str(tmp_path / 'b.json'), '--image-dir', str(tmp_path),
            '--copy-to', str(tmp_path / 'deep' / 'copy')])
    assert not (tmp_path / 'deep').exists() and not (tmp_path / 'b.json').exists()


def test_copies_follow_no_link(tool, tmp_path):
    data = small_coco()
    data['images'][0]['file_name'] = 'link/0.png'
    (tmp_path / 'all.json').write_text(json.dumps(data))
    source, target, other = (tmp_path / name for name in ('source', 'target', 'other'))
    for folder in (source / 'link', target, other):
        folder.mkdir(parents=True)
    for i in range(10):
        Image.new('RGB', (9, 9)).save(source / ('link/0.png' if i == 0 else f'{i}.png'))
    (target / 'link').symlink_to(other)
    arguments = [str(tmp_path / 'all.json'), str(tmp_path / 'b.json'), '--image-dir', str(source),
                 '--copy-to', str(target)]
    with pytest.raises(SystemExit, match='is a link that leads out of'):
        tool('coco_subset.py').main(arguments)
    assert not list(other.iterdir())
    (target / 'link').unlink()
    tool('coco_subset.py').main(arguments)
    assert (target / 'link' / '0.png').is_file()
