"""tools/demo.py on the images people really have."""

import importlib.util
import json

import cv2
import numpy as np
import pytest
import torch
from detection_helpers import PAIR, build, small_config
from mmengine.config import Config
from mmengine.registry import init_default_scope
from PIL import Image
from pycocotools.coco import COCO


@pytest.fixture(scope='module')
def demo(root_dir):
    spec = importlib.util.spec_from_file_location('demo', root_dir / 'tools' / 'demo.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope='module')
def images(tmp_path_factory):
    """Name -> (height, width) as a viewer shows them."""
    folder = tmp_path_factory.mktemp('images')
    rng = np.random.default_rng(0)

    def noise(height, width, channels=3):
        shape = (height, width, channels) if channels > 1 else (height, width)
        return Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8))

    noise(40, 60).save(folder / 'plain.jpg')
    noise(40, 60, 1).save(folder / 'gray.png')
    noise(40, 60, 4).save(folder / 'alpha.PNG')
    noise(3, 2).save(folder / 'tiny.png')
    noise(900, 1400, 1).save(folder / 'huge.jpg')
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    noise(40, 60).save(folder / 'turned.jpg', exif=exif)
    (folder / 'notes.txt').write_text('no image')
    sizes = {'plain.jpg': (40, 60), 'gray.png': (40, 60), 'alpha.PNG': (40, 60),
             'tiny.png': (3, 2), 'huge.jpg': (900, 1400), 'turned.jpg': (60, 40)}
    return folder, sizes


def test_detector(demo, images, tmp_path, capsys):
    folder, sizes = images
    cfg = small_config(PAIR)
    cfg.model.test_cfg.rcnn.max_per_img = 3
    cfg.test_pipeline[1].scale = (128, 128)
    cfg.test_dataloader.dataset.pipeline[1].scale = (128, 128)
    cfg.dump(tmp_path / 'config.py')
    torch.save(dict(state_dict=build(cfg).state_dict(), meta={}), tmp_path / 'model.pth')
    status = demo.main([str(folder), str(tmp_path / 'config.py'), str(tmp_path / 'model.pth'),
                        '--out-dir', str(tmp_path / 'out'), '--score-thr', '0'])
    printed = capsys.readouterr()
    assert status == 0, printed.err
    assert '6 of 6 images' in printed.out
    coco = COCO(tmp_path / 'out' / 'images.json')
    results = coco.loadRes(str(tmp_path / 'out' / 'results.json'))
    ids = {image['file_name']: image['id'] for image in coco.dataset['images']}
    assert set(ids) == set(sizes) and len(coco.dataset['categories']) == 80
    for name, (height, width) in sizes.items():
        drawn = cv2.imread(str(tmp_path / 'out' / 'vis' / name))
        assert drawn.shape == (height, width, 3), name
        image = coco.imgs[ids[name]]
        assert (image['height'], image['width']) == (height, width)
        found = results.imgToAnns[ids[name]]
        assert len(found) == 3
        for one in found:
            x, y, w, h = one['bbox']
            assert x + w <= width + 1e-3 and y + h <= height + 1e-3
            assert results.annToMask(one).shape == (height, width)
            assert one['category_id'] in coco.cats
    plain = cv2.imread(str(folder / 'plain.jpg'))
    assert not np.array_equal(cv2.imread(str(tmp_path / 'out' / 'vis' / 'plain.jpg')), plain)


def test_broken_image_does_not_stop_the_others(demo, images, tmp_path, capsys):
    folder, _ = images
    mixed = tmp_path / 'mixed'
    mixed.mkdir()
    (mixed / 'broken.jpg').write_bytes(b'not an image')
    (mixed / 'plain.jpg').write_bytes((folder / 'plain.jpg').read_bytes())
    cfg = small_config(PAIR)
    cfg.dump(tmp_path / 'config.py')
    torch.save(dict(state_dict=build(cfg).state_dict(), meta={}), tmp_path / 'model.pth')
    status = demo.main([str(mixed), str(tmp_path / 'config.py'), str(tmp_path / 'model.pth'),
                        '--out-dir', str(tmp_path / 'out')])
    printed = capsys.readouterr()
    assert status == 1
    assert 'broken.jpg: left out' in printed.err and '1 of 2 images' in printed.out


@pytest.mark.parametrize('name', [
    'quickstart/digits_cls.py',  # no test data of its own
    'deit_bias/vit-ti-bias-0.9-0.1_8xb128-300e_in100.py'])
def test_classifier(demo, images, root_dir, tmp_path, capsys, name):
    from mmpretrain.registry import MODELS
    folder, sizes = images
    config = root_dir / 'configs' / name
    cfg = Config.fromfile(config)
    init_default_scope('mmpretrain')
    model = MODELS.build({'data_preprocessor': cfg.get('data_preprocessor'), **cfg.model})
    classes = [f'class {i}' for i in range(cfg.model.head.num_classes)]
    torch.save(dict(state_dict=model.state_dict(), meta=dict(dataset_meta=dict(classes=classes))),
               tmp_path / 'model.pth')
    status = demo.main([str(folder), str(config), str(tmp_path / 'model.pth'), '--out-dir',
                        str(tmp_path / 'out')])
    printed = capsys.readouterr()
    assert status == 0, printed.err
    found = json.loads((tmp_path / 'out' / 'predictions.json').read_text())
    assert set(found) == set(sizes)
    for file, one in found.items():
        assert one['class'] == f'class {one["label"]}'
        assert 1 / len(classes) <= one['score'] <= 1
        assert (tmp_path / 'out' / 'vis' / file).exists()


def test_subfolders_and_like_names(demo, tmp_path, capsys):
    """a.jpg, a.png and b/a.png are three images; ids come from the annotation file."""
    folder, out = tmp_path / 'in', tmp_path / 'out'
    names = ['a.jpg', 'a.png', 'a.ppm', 'b c/a.png']
    for i, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new('RGB', (60, 40 + i), (90, 60 * i, 30)).save(folder / name)
    ann = tmp_path / 'ann.json'
    ann.write_text(json.dumps({
        'images': [{'id': 7 * i + 5, 'file_name': name} for i, name in enumerate(names)],
        'categories': [{'id': 20 - i, 'name': str(i)} for i in range(10)]}))
    options = ['--model', 'digits', '--device', 'cpu', '--out-dir', str(out), '--cfg-options',
               'model.test_cfg.rcnn.score_thr=0', 'model.test_cfg.rcnn.max_per_img=2']
    assert demo.main([str(folder), *options, '--ann-file', str(ann), '--batch-size', '3']) == 0
    results = json.loads((out / 'results.json').read_text())
    assert {one['image_id'] for one in results} == {5, 12, 19, 26}
    assert {one['category_id'] for one in results} <= set(range(11, 21))
    sizes = {image['file_name']: image['height']
             for image in json.loads((out / 'images.json').read_text())['images']}
    assert sizes == {name: 40 + i for i, name in enumerate(names)}
    drawn = {str(file.relative_to(out / 'vis')) for file in out.rglob('vis/**/*.*')}
    assert drawn == {'a.jpg', 'a.png', 'a.ppm.png', 'b c/a.png'}
    assert '4 of 4 images' in capsys.readouterr().out
    ann.write_text(json.dumps({'images': [], 'categories': [{'id': 1, 'name': 'cat'}]}))
    with pytest.raises(ValueError, match="no category '0'"):
        demo.main([str(folder), '--overwrite', *options, '--ann-file', str(ann)])


def test_clear_errors(demo, root_dir, tmp_path, capsys):
    config = str(root_dir / 'configs' / 'vitdet' / PAIR)
    with pytest.raises(SystemExit):
        demo.main([str(tmp_path / 'absent.jpg'), config, config])
    assert 'absent.jpg does not exist' in capsys.readouterr().err
    for args in (['--model', 'digits', config], [], [config]):
        with pytest.raises(SystemExit):
            demo.main([str(tmp_path), *args])
    assert 'CHECKPOINT are missing' in capsys.readouterr().err
    with pytest.raises(ValueError, match='no images'):
        demo.main([str(tmp_path), config, config])


@pytest.mark.parametrize('task', ['panoptic', 'semantic'])
def test_dense_models(demo, root_dir, tmp_path, capsys, task):
    """Random weights: files and dicts say the same of every pixel, at the images' own sizes."""
    import mmext
    config = root_dir / f'configs/quickstart/digits_{task}_fpn.py'
    options = {'model.backbone.init_cfg': None}
    torch.manual_seed(1)
    random = mmext.load(config, device='cpu', options=options)
    assert random.classes[-1] == 'squared paper'
    torch.save(dict(state_dict=random.model.state_dict(), meta={}), tmp_path / 'model.pth')
    rng = np.random.default_rng(0)
    sizes = {'a.png': (128, 128), 'sub/b.jpg': (90, 150)}
    for name, size in sizes.items():
        (tmp_path / 'in' / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)).save(
            tmp_path / 'in' / name)
    out = tmp_path / 'out'
    assert demo.main([str(tmp_path / 'in'), str(config), str(tmp_path / 'model.pth'), '--device',
                      'cpu', '--batch-size', '2', '--out-dir', str(out)]) == 0
    assert '2 of 2 images' in capsys.readouterr().out
    model = mmext.load(config, tmp_path / 'model.pth', device='cpu')
    found = [one.as_dict() for one in model.predict(
        [tmp_path / 'in' / name for name in sizes], batch_size=2)]
    for (name, size), one in zip(sizes.items(), found, strict=True):
        assert cv2.imread(str(out / 'vis' / name)).shape[:2] == size
        if task == 'semantic':
            labels = cv2.imread(str(out / f'semantic/{name}.png'), cv2.IMREAD_UNCHANGED)
            assert np.array_equal(labels, one['labels']) and labels.shape == size
            assert sum(part['area'] for part in one['classes']) == labels.size
        else:
            rgb = np.asarray(Image.open(out / f'panoptic/{name}.png')).astype(int)
            ids = rgb @ (1, 256, 256 ** 2)  # COCO's panoptic format
            assert np.array_equal(ids, one['segment_ids']) and ids.shape == size
            said = next(entry for entry in json.loads((out / 'panoptic.json').read_text())
                        ['annotations'] if entry['file_name'] == f'{name}.png')
            areas = {part['id']: part['area'] for part in said['segments_info']}
            assert areas == {int(i): int((ids == i).sum()) for i in np.unique(ids) if i}
            assert areas
    assert (out / 'results.json').exists() == (task == 'panoptic')
