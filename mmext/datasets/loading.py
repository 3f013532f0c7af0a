"""Loading images: a damaged file is an error that names it, never a half-gray or shifted image.

OpenCV decodes a damaged JPEG to an image whose rest is gray, so training would go on with it.

Orientation. Cameras store the sensor's pixels and an EXIF tag that says how to turn them. Viewers
turn, OpenCV turns some formats, annotation tools differ. Here the annotation file's height and
width decide: the image is turned or not, whichever fits them. Where both fit (a square image, or
one that is only mirrored or upside down) nobody can know, and the image is refused with the cure.
Without annotated sizes (classification, inference) the image is turned, as a viewer shows it.
TIFF's own orientation is obeyed by every decoder: such a file has the size that is seen.

Depth. Networks get 8 bits and three channels, from a file with
  gray (8 bits)      the same value in all channels
  1 bit, palette     its colors
  alpha              its colors; the alpha channel is dropped, whatever lies below it is seen
  16 bits            the high byte; an image that leaves the two highest bits empty (12-bit data
                     in a 16-bit file) would be nearly black and is refused
  floats, 32 bits    refused: nobody knows their range
  CMYK JPEG          converted by the decoder
`color_type='unchanged'` gives what is stored, neither turned nor converted.
"""

import io
import re
import warnings
import zlib

import cv2
import mmcv
import numpy as np
from mmcv.transforms import BaseTransform
from mmcv.transforms import LoadImageFromFile as _LoadImageFromFile
from mmengine import fileio
from mmengine.dataset import Compose
from PIL import Image, UnidentifiedImageError

from mmext.registry import TRANSFORMS

try:  # the same libjpeg-turbo as OpenCV's and the same pixels, but it tells of damage
    import simplejpeg
except ImportError:
    simplejpeg = None

ORIENTATION = 0x0112  # EXIF tag
JPEG_MARKER = re.compile(rb'\xff+[\x01-\xcf\xd8-\xfe]')  # no escaped FF, no restart
TURNED = {  # EXIF orientation -> the image as it is to be seen
    2: lambda img: img[:, ::-1],
    3: lambda img: img[::-1, ::-1],
    4: lambda img: img[::-1],
    5: lambda img: img.swapaxes(0, 1),
    6: lambda img: np.rot90(img, -1),
    7: lambda img: img[::-1, ::-1].swapaxes(0, 1),
    8: lambda img: np.rot90(img),
}


class ImageError(ValueError):
    """An image file is missing, damaged or not an image; the message names it."""


def find_fault(data: bytes) -> str | None:
    """What is wrong with an image file's content, or None; looks at markers, does not decode."""
    if not data:
        return 'is empty'
    if data[:2] == b'\xff\xd8':
        if not jpeg_is_whole(data):
            return 'is truncated (the JPEG has no end marker)'
    elif data[:8] == b'\x89PNG\r\n\x1a\n':
        return png_fault(data)
    return None


def jpeg_is_whole(data: bytes) -> bool:
    """Whether the first image of the file ends; cameras put previews before and behind it."""
    at = 2
    while found := JPEG_MARKER.search(data, at):
        at, code = found.end(), data[found.end() - 1]
        if code == 0xD9:
            return True
        if code not in (0x01, 0xD8):  # a segment with a length; scans go on behind theirs
            at += int.from_bytes(data[at:at + 2], 'big')
    return False


def png_fault(data: bytes) -> str | None:
    at = 8
    while at + 12 <= len(data):
        end = at + 8 + int.from_bytes(data[at:at + 4], 'big')
        kind = data[at + 4:at + 8]
        if end + 4 > len(data):
            break
        needed = not kind[0] & 32  # critical chunks have capitals
        if needed and zlib.crc32(data[at + 4:end]) != int.from_bytes(data[end:end + 4], 'big'):
            return f'is damaged (checksum of the {kind.decode("latin1")} chunk of the PNG)'
        if kind == b'IEND':
            return None
        at = end + 4
    return 'is truncated (no IEND chunk in the PNG)'


def read_header(source) -> tuple[tuple[int, int], int, str] | None:
    """Stored (height, width), EXIF orientation (1 to 8) and Pillow's mode of a path or file.

    None for formats that Pillow does not know.

    Raises:
        ImageError: too many pixels for Pillow, which takes it for a decompression bomb.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')  # large, but not too large
            with Image.open(source) as image:
                exif = image.format != 'TIFF' and ('exif' in image.info or (
                    image.format == 'PNG' and has_chunk(source, b'eXIf')))
                tag = image.getexif().get(ORIENTATION, 1) if exif else 1
                return image.size[::-1], tag if tag in TURNED else 1, image.mode
    except Image.DecompressionBombError as error:
        raise ImageError(f'is too large ({error}); cut it into tiles') from error
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError):
        return None


def has_chunk(source, name: bytes) -> bool:
    """Whether the file holds the name of a PNG chunk; Pillow decodes all of it to find out."""
    if isinstance(source, io.BytesIO):
        return name in source.getvalue()
    with open(source, 'rb') as file:
        return name in file.read()


def turn(
    stored: tuple[int, int], orientation: int, annotated: tuple[int, int] | None
) -> tuple[int, str | None]:
    """The EXIF orientation to apply (1: leave as stored), and what is wrong or None.

    Args:
        stored: height, width of the pixels in the file.
        orientation: the EXIF tag, 1 to 8.
        annotated: height, width that the annotation file gives; None where there is none.
    """
    swaps = orientation >= 5
    seen = stored[::-1] if swaps else stored
    if annotated is None or (orientation == 1 and stored == annotated):
        return orientation, None
    if annotated not in (stored, seen):
        return 1, (f'has {seen[1]} x {seen[0]} pixels but the annotation file says '
                   f'{annotated[1]} x {annotated[0]} (width x height): boxes and masks would not '
                   'fit; write the size of the file that was annotated')
    if stored != seen:
        return orientation if annotated == seen else 1, None
    return 1, (f'has the EXIF orientation {orientation} and it can not be told whether it was '
               'annotated as stored or as a viewer shows it: for the latter make the files '
               "upright (mogrify -auto-orient FILES), else set color_type="
               "'color_ignore_orientation' of LoadImageFromFile")


def find_depth_fault(data: bytes, mode: str) -> str | None:
    """Why the values can not become 8 bits, or None."""
    deep = (data[:8] == b'\x89PNG\r\n\x1a\n' and data[24] == 16) or (
        data[:4] in (b'II*\0', b'MM\0*')) or mode[:1] in 'IF'
    if not deep:
        return None
    raw = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if raw is None or raw.dtype == np.uint8:
        return None
    if raw.dtype != np.uint16:
        return f'holds {raw.dtype} values, whose range is not known; convert it to 8 bits'
    if raw.max(initial=0) < 2**14:
        return (f'holds 16-bit values up to {raw.max()} only and would be nearly black in 8 '
                'bits; scale it and save it with 8 bits')
    return None


def decode(data: bytes, color_type: str = 'color', backend: str = 'cv2') -> np.ndarray:
    """Pixels as stored, BGR; without turning. ImageError says what is wrong, without the name."""
    plain = 'color' if backend == 'turbojpeg' else 'color_ignore_orientation'
    flag = {'color': plain, 'grayscale': plain.replace('color', 'grayscale')}.get(
        color_type, color_type)
    try:
        if simplejpeg and data[:2] == b'\xff\xd8' and backend == 'cv2' and flag == plain and (
                simplejpeg.decode_jpeg_header(data)[2] in ('YCbCr', 'Gray')):
            return simplejpeg.decode_jpeg(data, colorspace='BGR', strict=True)
        img = mmcv.imfrombytes(data, flag=flag, backend=backend)
    except ValueError as error:
        raise ImageError(f'is damaged ({error})') from error
    except Exception as error:  # every decoder has its own
        raise ImageError(f'cannot be decoded ({error})') from error
    if img is None:
        raise ImageError('cannot be decoded')
    return img


def load_image(
    data: bytes,
    size: tuple[int, int] | None = None,
    color_type: str = 'color',
    backend: str = 'cv2',
) -> np.ndarray:
    """The image (height, width, 3) uint8 BGR of a file's content, turned as ``size`` says.

    Args:
        data: content of the file.
        size: height and width that the annotation file gives; None to turn by EXIF.
        color_type, backend: of mmcv's ``imfrombytes``.

    Raises:
        ImageError: what is wrong, without the name of the file.
    """
    fault = find_fault(data)
    if fault:
        raise ImageError(fault)
    header = read_header(io.BytesIO(data))
    orientation = 1
    if header:
        stored, orientation, mode = header
        if color_type not in ('color', 'grayscale') or backend == 'tifffile':
            orientation = 1
        orientation, fault = turn(stored, orientation, size)
        if fault is None and color_type != 'unchanged':
            fault = find_depth_fault(data, mode)
        if fault:
            raise ImageError(fault)
    img = decode(data, color_type, backend)
    if orientation != 1:
        img = np.ascontiguousarray(TURNED[orientation](img))
    if size is not None and img.shape[:2] != tuple(size):
        raise ImageError(turn(img.shape[:2], 1, tuple(size))[1])
    return img


def read_image(path, size=None, color_type='color', backend='cv2', backend_args=None):
    """``load_image`` of a file; its errors name the file and the cure."""
    try:
        data = fileio.get(path, backend_args=backend_args)
    except FileNotFoundError as error:
        raise ImageError(f'image {path} does not exist; check data_root and data_prefix '
                         'against the annotation file') from error
    try:
        return load_image(data, size, color_type, backend)
    except ImageError as error:
        cure = '' if ';' in str(error) else '; restore the file or remove it from the data set'
        raise ImageError(f'image {path} {error}{cure}') from error


@TRANSFORMS.register_module()
class LoadImageFromFile(_LoadImageFromFile):
    """mmcv's ``LoadImageFromFile`` that refuses damaged files; arguments and keys are the same.

    Where the data set gives ``height`` and ``width`` (COCO), the image has that size or is
    refused.

    Raises:
        ImageError: The file is missing, damaged, cannot be decoded or has another size than
            annotated. With ``ignore_empty=True`` the sample is skipped instead, as in mmcv.
    """

    def transform(self, results: dict) -> dict | None:
        size = (results['height'], results['width']) if 'height' in results and (
            'width' in results) else None
        try:
            img = read_image(results['img_path'], size, self.color_type, self.imdecode_backend,
                             self.backend_args)
        except ImageError:
            if self.ignore_empty:
                return None
            raise
        results['img'] = img.astype(np.float32) if self.to_float32 else img
        results['img_shape'] = results['ori_shape'] = img.shape[:2]
        return results


@TRANSFORMS.register_module()
class NameImage(BaseTransform):
    """A pipeline in one transform: whatever goes wrong in it names the image.

    An image one pixel high, for example, ends OpenCV's resize with an assertion.

    Args:
        transforms: the pipeline's configs.
    """

    def __init__(self, transforms):
        self.transforms = Compose(transforms)

    def transform(self, results: dict) -> dict | None:
        path, shape = results.get('img_path'), None
        for step in self.transforms.transforms:
            try:
                results = step(results)
            except ImageError:
                raise
            except Exception as error:
                size = f' ({shape[1]} x {shape[0]} pixels)' if shape else ''
                raise ImageError(f'image {path}{size}: {type(step).__name__} ends with '
                                 f'{type(error).__name__}: {error}') from error
            if results is None:
                return None
            shape = results.get('ori_shape', shape) if isinstance(results, dict) else shape
        return results

    def __repr__(self):
        return repr(self.transforms)
