"""Damaged image files are reported by name."""

import cv2
import numpy as np
import pytest
from mmcv.transforms import LoadImageFromFile as MMCVLoad
from PIL import Image

from mmext.datasets.loading import ImageError, LoadImageFromFile
from mmext.registry import TRANSFORMS


@pytest.fixture
def image(tmp_path):
    rng = np.random.default_rng(0)
    img = cv2.resize(rng.integers(0, 255, (12, 16, 3), dtype=np.uint8), (160, 120))

    def save(suffix, **options):
        path = tmp_path / f'x{suffix}'
        Image.fromarray(img).save(path, **options)
        return path

    return save


@pytest.mark.parametrize('suffix, options', [
    ('.jpg', {}), ('.jpg', dict(progressive=True)), ('.png', {}), ('.bmp', {}), ('.webp', {})])
def test_equals_mmcv_on_sound_files(image, suffix, options):
    path = str(image(suffix, **options))
    ours, theirs = (t({'img_path': path}) for t in (LoadImageFromFile(), MMCVLoad()))
    assert ours.keys() == theirs.keys()
    assert np.array_equal(ours['img'], theirs['img'])
    assert ours['img_shape'] == theirs['img_shape'] == ours['ori_shape'] == (120, 160)


def test_embedded_thumbnail_and_trailing_bytes_are_sound(image, tmp_path):
    thumbnail = image('.jpg', quality=20).read_bytes()
    data = image('.jpg').read_bytes()
    comment = b'\xff\xfe' + (len(thumbnail) + 2).to_bytes(2, 'big') + thumbnail
    path = tmp_path / 'thumb.jpg'
    path.write_bytes(data[:2] + comment + data[2:] + b'\0\0\0')
    assert LoadImageFromFile()({'img_path': str(path)})['img'].shape == (120, 160, 3)
    path.write_bytes((data[:2] + comment + data[2:])[:-200])
    with pytest.raises(ImageError, match='truncated'):
        LoadImageFromFile()({'img_path': str(path)})


@pytest.mark.parametrize('suffix, options', [
    ('.jpg', {}), ('.jpg', dict(progressive=True)), ('.png', {})])
def test_truncated(image, suffix, options):
    path = image(suffix, **options)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ImageError, match=rf'{path.name} is truncated.*restore the file'):
        TRANSFORMS.build(dict(type='mmext.LoadImageFromFile'))({'img_path': str(path)})
    assert LoadImageFromFile(ignore_empty=True)({'img_path': str(path)}) is None


def test_missing_empty_and_no_image(tmp_path):
    with pytest.raises(ImageError, match='does not exist'):
        LoadImageFromFile()({'img_path': str(tmp_path / 'none.jpg')})
    (tmp_path / 'empty.jpg').touch()
    with pytest.raises(ImageError, match='is empty'):
        LoadImageFromFile()({'img_path': str(tmp_path / 'empty.jpg')})
    (tmp_path / 'text.jpg').write_text('this is no image')
    with pytest.raises(ImageError, match='cannot be decoded'):
        LoadImageFromFile()({'img_path': str(tmp_path / 'text.jpg')})


def test_real_images_are_sound(shared_dir):
    files = sorted((shared_dir / 'data' / 'coco_mini' / 'val2017').glob('*.jpg'))
    assert len(files) == 42
    for path in files:
        assert LoadImageFromFile()({'img_path': str(path)})['img'].ndim == 3
