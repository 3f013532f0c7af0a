"""Configs by name: ``_base_ = 'mmext::quickstart/digits_cls.py'``, ``get_config('mmext::...')``."""


def add_package() -> None:
    """Add mmext to the fixed list of packages whose configs mmengine finds by name."""
    from mmengine.config import utils
    packages = getattr(utils, 'MODULE2PACKAGE', None) or utils.PKG2PROJECT
    packages.setdefault('mmext', 'mmext')
