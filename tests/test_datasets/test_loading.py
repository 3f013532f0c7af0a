"""Damaged image files are reported by name."""

import cv2
import numpy as np
import pytest
from mmcv.transforms import LoadImageFromFile as MMCVLoad
from PIL import Image, ImageOps

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


# orientation

def upright_scene(size, rng):
    """Low-contrast noise with a bright corner, so that every turn and flip is seen."""
    height, width = size
    img = rng.integers(0, 60, (height, width, 3), dtype=np.uint8)
    img[:height // 3, :width // 3] = 250
    return img


def save_with_orientation(img, path, tag):
    exif = Image.Exif()
    exif[0x0112] = tag
    Image.fromarray(img).save(path, exif=exif, **({'quality': 95} if path.suffix == '.jpg' else {}))


@pytest.mark.parametrize('suffix', ['.jpg', '.png', '.webp'])
@pytest.mark.parametrize('tag', range(1, 9))
def test_orientation_follows_the_annotated_size(tmp_path, tag, suffix):
    """Against Pillow's exif_transpose: turned, or as stored, or refused where both would fit."""
    path = tmp_path / f'x{suffix}'
    save_with_orientation(upright_scene((40, 60), np.random.default_rng(tag)), path, tag)
    stored = Image.open(path)
    seen = np.array(ImageOps.exif_transpose(stored).convert('RGB'))[..., ::-1].astype(int)
    plain = np.array(stored.convert('RGB'))[..., ::-1].astype(int)
    load = LoadImageFromFile()
    assert np.abs(load({'img_path': str(path)})['img'] - seen).max() <= 12  # no annotated size

    def annotated(img):
        return {'img_path': str(path), 'height': img.shape[0], 'width': img.shape[1]}

    if tag in (2, 3, 4):
        with pytest.raises(ImageError, match=r'x\.\w+ has the EXIF orientation .*auto-orient'):
            load(annotated(plain))
        raw = LoadImageFromFile(color_type='color_ignore_orientation')(annotated(plain))
        assert np.abs(raw['img'] - plain).max() <= 12
    else:
        assert np.abs(load(annotated(plain))['img'] - plain).max() <= 12
        assert np.abs(load(annotated(seen))['img'] - seen).max() <= 12


def test_tiff_is_turned_by_every_decoder(tmp_path):
    path = tmp_path / 'x.tif'
    for tag in range(1, 9):
        save_with_orientation(upright_scene((40, 60), np.random.default_rng(tag)), path, tag)
        seen = np.array(Image.open(path).convert('RGB'))[..., ::-1]
        sizes = dict(zip(('height', 'width'), seen.shape[:2], strict=True))
        assert np.array_equal(LoadImageFromFile()({'img_path': str(path), **sizes})['img'], seen)


@pytest.mark.parametrize('tag, refused', [(1, False), (6, True), (3, True)])
def test_square_images_are_ambiguous(tmp_path, tag, refused):
    path = tmp_path / 'x.jpg'
    save_with_orientation(upright_scene((48, 48), np.random.default_rng(0)), path, tag)
    results = {'img_path': str(path), 'height': 48, 'width': 48}
    if refused:
        with pytest.raises(ImageError, match='can not be told'):
            LoadImageFromFile()(results)
    else:
        assert LoadImageFromFile()(results)['img'].shape == (48, 48, 3)


def test_another_size_than_annotated(image):
    with pytest.raises(ImageError, match='has 160 x 120 pixels but the annotation file says 80 x '):
        LoadImageFromFile()({'img_path': str(image('.jpg')), 'height': 120, 'width': 80})


# depth

@pytest.mark.parametrize('mode, suffix, difference', [
    ('L', '.png', 0), ('P', '.png', 0), ('1', '.png', 0), ('LA', '.png', 0), ('RGBA', '.png', 0),
    ('L', '.jpg', 8), ('CMYK', '.jpg', 30)])
def test_what_becomes_of_each_kind_of_pixels(tmp_path, mode, suffix, difference):
    rng = np.random.default_rng(0)
    rgb = cv2.resize(rng.integers(0, 255, (6, 8, 3), dtype=np.uint8), (80, 60))
    file = Image.fromarray(rgb).convert(mode)
    path = tmp_path / f'x{suffix}'
    file.save(path)
    img = LoadImageFromFile()({'img_path': str(path)})['img']
    # the colors without alpha, in three channels
    expected = np.array(file.convert('RGB'))[..., ::-1].astype(int)
    assert img.dtype == np.uint8 and img.shape == (60, 80, 3)
    assert np.abs(img - expected).max() <= difference
    assert np.array_equal(img, MMCVLoad()({'img_path': str(path)})['img'])


@pytest.mark.parametrize('suffix', ['.png', '.tif'])
def test_16_bits(tmp_path, suffix):
    values = np.random.default_rng(0).integers(0, 2**16, (20, 30), dtype=np.uint16)
    path = tmp_path / f'x{suffix}'
    cv2.imwrite(str(path), values)
    img = LoadImageFromFile()({'img_path': str(path)})['img']
    assert np.abs(img[..., 1].astype(int) - (values >> 8)).max() <= 1
    cv2.imwrite(str(path), values >> 4)  # 12-bit data
    with pytest.raises(ImageError, match=r'x\.\w+ holds 16-bit values up to 40\d\d only'):
        LoadImageFromFile()({'img_path': str(path)})
    raw = LoadImageFromFile(color_type='unchanged')({'img_path': str(path)})['img']
    assert np.array_equal(raw.squeeze(), values >> 4)


def test_floats_are_refused(tmp_path):
    path = tmp_path / 'x.tif'
    cv2.imwrite(str(path), np.random.default_rng(0).random((8, 9), dtype=np.float32))
    with pytest.raises(ImageError, match='holds float32 values'):
        LoadImageFromFile()({'img_path': str(path)})


# damage

def test_bytes_after_the_end_are_no_damage(image):
    """Cameras append previews and maps: 20 whole files, marker bytes in what follows."""
    data = image('.jpg').read_bytes()
    expected = LoadImageFromFile()({'img_path': str(image('.jpg'))})['img']
    rng = np.random.default_rng(0)
    for tail in [b'\xff\xda', data[:-2], data[:700]] + [
            rng.integers(0, 256, 5000, dtype=np.uint8).tobytes() for _ in range(17)]:
        path = image('.jpg')
        path.write_bytes(data + tail)
        assert np.array_equal(LoadImageFromFile()({'img_path': str(path)})['img'], expected)


def test_damaged_middle(shared_dir, tmp_path):
    """64 lost or overwritten bytes in real photographs; the rate is what libjpeg itself sees."""
    pytest.importorskip('simplejpeg')
    rng = np.random.default_rng(0)
    found = dict.fromkeys(('overwritten', 'lost'), 0)
    files = sorted((shared_dir / 'data' / 'coco_mini' / 'val2017').glob('*.jpg'))
    path = tmp_path / 'x.jpg'
    for file in files:
        for kind in found:
            data = bytearray(file.read_bytes())
            at = int(rng.integers(len(data) // 3, len(data) * 2 // 3))
            data[at:at + 64] = rng.bytes(64) if kind == 'overwritten' else b''
            path.write_bytes(data)
            try:
                LoadImageFromFile()({'img_path': str(path)})
            except ImageError as error:
                assert 'x.jpg is' in str(error)
                found[kind] += 1
    assert min(found.values()) > .6 * len(files), found


def test_every_damaged_png_is_found(image):
    data = image('.png').read_bytes()
    path = image('.png')
    for at in np.random.default_rng(0).integers(40, len(data) - 20, 50):
        damaged = bytearray(data)
        damaged[at] ^= 4
        path.write_bytes(damaged)
        with pytest.raises(ImageError, match=r'x\.png is (damaged|truncated)'):
            LoadImageFromFile()({'img_path': str(path)})


def test_huge_image_is_named_and_not_decoded(tmp_path):
    """A PNG of 20,000 x 20,000 zeros is 50 kB; decoding would take 1.2 GB."""
    import zlib

    def chunk(kind, body):
        crc = zlib.crc32(kind + body).to_bytes(4, 'big')
        return len(body).to_bytes(4, 'big') + kind + body + crc

    side = (20_000).to_bytes(4, 'big')
    path = tmp_path / 'bomb.png'
    path.write_bytes(b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', side + side + b'\x08\0\0\0\0')
                     + chunk(b'IDAT', zlib.compress(bytes(1000))) + chunk(b'IEND', b''))
    with pytest.raises(ImageError, match=r'bomb\.png is too large.*tiles'):
        LoadImageFromFile()({'img_path': str(path)})


def test_thin_image_is_named_where_the_pipeline_fails(tmp_path):
    """One pixel high: the resize that keeps the ratio comes to a height of 0."""
    from mmengine.registry import DefaultScope
    path = tmp_path / 'thin.png'
    Image.fromarray(np.zeros((1, 900, 3), np.uint8)).save(path)
    steps = [dict(type='mmext.LoadImageFromFile'),
             dict(type='Resize', scale=(128, 128), keep_ratio=True)]
    with DefaultScope.overwrite_default_scope('mmdet'):
        pipeline = TRANSFORMS.build(dict(type='mmext.NameImage', transforms=steps))
    with pytest.raises(ImageError, match=r'thin\.png \(900 x 1 pixels\): Resize ends with'):
        pipeline({'img_path': str(path)})
    Image.fromarray(np.zeros((90, 90, 3), np.uint8)).save(path)
    assert pipeline({'img_path': str(path)})['img'].shape == (128, 128, 3)
