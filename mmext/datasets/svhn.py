"""Street View House Numbers, cropped digits (Netzer et al., 2011), which mmpretrain lacks."""

from pathlib import Path

import numpy as np
from mmpretrain.datasets import BaseDataset
from scipy.io import loadmat

from mmext.registry import DATASETS

URL = 'http://ufldl.stanford.edu/housenumbers'
PARTS = ('train', 'test', 'extra')


@DATASETS.register_module()
class SVHN(BaseDataset):
    """SVHN format 2: 32 x 32 RGB digits from the original ``{train,test,extra}_32x32.mat`` files.

    73,257 training, 26,032 test and 531,131 extra images. Files label the digit 0 as class 10;
    here it is class 0. Nothing is downloaded.

    Args:
        data_root: folder of the .mat files.
        split: 'train', 'test', 'extra', or several joined as 'train+extra'.
        test_mode: raise on a sample that fails instead of drawing another; None for 'test' only.
        **kwargs: mmpretrain's ``BaseDataset``: pipeline, indices, ...

    Raises:
        ValueError: the split is unknown, or a file is no SVHN file.
        FileNotFoundError: a file is missing; the message says where to get it.
    """

    METAINFO = {'classes': tuple('0123456789')}

    def __init__(self, data_root: str, split: str = 'train', test_mode: bool | None = None,
                 **kwargs):
        self.parts = split.split('+')
        unknown = [part for part in self.parts if part not in PARTS]
        if unknown:
            raise ValueError(f"SVHN split={split!r} is unknown; choose of {PARTS}, joined by '+'")
        self.split = split
        super().__init__(ann_file='', data_root=data_root, data_prefix='',
                         test_mode=split == 'test' if test_mode is None else test_mode, **kwargs)

    def load_data_list(self) -> list[dict]:
        """One dict with img (32, 32, 3) uint8 RGB and gt_label per image."""
        paths = [Path(self.data_root).expanduser() / f'{part}_32x32.mat' for part in self.parts]
        missing = [path for path in paths if not path.is_file()]
        if missing:
            raise FileNotFoundError(
                f'SVHN split {self.split!r} needs {", ".join(map(str, missing))}; download '
                f'{", ".join(f"{URL}/{path.name}" for path in missing)} into {self.data_root} '
                'or set data_root (nothing is downloaded automatically)')
        return [sample for path in paths for sample in read_mat(path)]

    def extra_repr(self) -> list[str]:
        return [f'Root of dataset: \t{self.data_root}', f'Split: \t{self.split}']


def read_mat(path: Path) -> list[dict]:
    """Samples of one file; ValueError when its content is not SVHN's."""
    try:
        content = loadmat(str(path), variable_names=('X', 'y'))
        images, labels = content['X'], content['y'].ravel()
    except Exception as error:  # scipy raises whatever the damage leads to
        raise ValueError(f'{path} is damaged or no SVHN file of format 2 ({error}); '
                         f'download {URL}/{path.name} again') from error
    if images.shape != (32, 32, 3, len(labels)) or not np.isin(labels, range(1, 11)).all():
        raise ValueError(f'{path} should hold X (32, 32, 3, n) and y in 1..10, but X is '
                         f'{images.shape}; download {URL}/{path.name} again')
    images = np.ascontiguousarray(images.transpose(3, 0, 1, 2))
    return [dict(img=img, gt_label=int(label) % 10)
            for img, label in zip(images, labels, strict=True)]
