"""Loading images: a damaged file is an error that names it, never a half-gray image.

OpenCV decodes a truncated JPEG to an image whose rest is gray, so training would go on with it.
"""

import mmcv
import numpy as np
from mmcv.transforms import LoadImageFromFile as _LoadImageFromFile
from mmengine import fileio

from mmext.registry import TRANSFORMS


class ImageError(ValueError):
    """An image file is missing, damaged or not an image; the message names it."""


def find_fault(data: bytes) -> str | None:
    """What is wrong with an image file's content, or None; looks at markers, does not decode."""
    if not data:
        return 'is empty'
    if data[:2] == b'\xff\xd8':  # JPEG: inside a scan every FF is escaped, so markers are exact
        if data.rfind(b'\xff\xd9') < data.rfind(b'\xff\xda'):
            return 'is truncated (no end marker after the last scan of the JPEG)'
    elif data[:8] == b'\x89PNG\r\n\x1a\n' and data.rfind(b'IEND') < 0:
        return 'is truncated (no IEND chunk in the PNG)'
    return None


@TRANSFORMS.register_module()
class LoadImageFromFile(_LoadImageFromFile):
    """mmcv's ``LoadImageFromFile`` that refuses damaged files; arguments and keys are the same.

    Raises:
        ImageError: The file is missing, truncated or cannot be decoded. With
            ``ignore_empty=True`` the sample is skipped instead, as in mmcv.
    """

    def transform(self, results: dict) -> dict | None:
        path = results['img_path']
        try:
            img = self._read(path)
        except ImageError:
            if self.ignore_empty:
                return None
            raise
        results['img'] = img.astype(np.float32) if self.to_float32 else img
        results['img_shape'] = results['ori_shape'] = img.shape[:2]
        return results

    def _read(self, path: str) -> np.ndarray:
        try:
            data = fileio.get(path, backend_args=self.backend_args)
        except FileNotFoundError as error:
            raise ImageError(f'image {path} does not exist; check data_root and data_prefix '
                             'against the annotation file') from error
        fault = find_fault(data)
        if fault is None:
            img = mmcv.imfrombytes(
                data, flag=self.color_type, backend=self.imdecode_backend)
            if img is not None:
                return img
            fault = 'cannot be decoded'
        raise ImageError(f'image {path} {fault}; restore the file or remove it from the data set')
