"""Configs by name: ``_base_ = 'mmext::quickstart/digits_cls.py'``, ``get_config('mmext::...')``."""

import functools
import os.path as osp
import sys

ROOT = osp.dirname(osp.dirname(osp.abspath(__file__)))


def add_package() -> None:
    """Add mmext to the fixed list of packages whose configs mmengine finds by name.

    The original mmengine looks for every package in site-packages, where an editable install
    is not.
    """
    import mmengine.utils
    from mmengine.config import config, utils
    packages = getattr(utils, 'MODULE2PACKAGE', None) or utils.PKG2PROJECT
    packages.setdefault('mmext', 'mmext')
    find = mmengine.utils.get_installed_path

    @functools.wraps(find)
    def get_installed_path(package: str) -> str:
        return ROOT if package == 'mmext' else find(package)

    for module in (mmengine.utils, config, sys.modules.get('mmengine.hub.hub')):
        if module is not None:
            module.get_installed_path = get_installed_path
