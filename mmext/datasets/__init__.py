"""Data: only what mmpretrain and mmdet lack."""

from mmext.registry import DATASETS

from .loading import ImageError, LoadImageFromFile, NameImage

__all__ = ['ImageError', 'LoadImageFromFile', 'NameImage']


@DATASETS.register_module(name='SVHN')
def build_svhn(**kwargs):
    """``mmext.datasets.svhn.SVHN``; mmpretrain, its base, is imported when it is built."""
    from .svhn import SVHN
    return SVHN(**kwargs)
