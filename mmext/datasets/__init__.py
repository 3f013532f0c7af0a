"""Data: only what mmpretrain and mmdet lack."""

from .loading import ImageError, LoadImageFromFile, NameImage

__all__ = ['ImageError', 'LoadImageFromFile', 'NameImage']
