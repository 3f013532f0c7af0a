"""Data: only what mmpretrain and mmdet lack."""

from .loading import ImageError, LoadImageFromFile

__all__ = ['ImageError', 'LoadImageFromFile']
