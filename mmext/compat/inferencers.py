"""mmdet's and mmpretrain's inferencers in one process, in either order.

mmpretrain's build their test pipeline in whatever default scope is current: after a
``DetInferencer`` that ends in 'PackInputs is not in the mmdet::transform registry'
(mmpretrain#1674). mmdet's look for a registry of functions of their scope, which mmdet does not
have, and warn.
"""

import functools
import importlib.abc
import importlib.util
import sys

MODULE = 'mmpretrain.apis.base'


def keep_scopes() -> None:
    """Give every inferencer its own scope, mmpretrain's as soon as they are imported."""
    from mmengine.registry import FUNCTIONS, Registry
    if FUNCTIONS._search_child('mmdet') is None:
        Registry('function', scope='mmdet', parent=FUNCTIONS)
    if MODULE in sys.modules:
        _build_in_own_scope(sys.modules[MODULE])
    else:
        sys.meta_path.insert(0, _WhenImported())


class _WhenImported(importlib.abc.MetaPathFinder):
    """For one module, once: importing mmpretrain takes seconds that most users need not wait."""

    def find_spec(self, name, path=None, target=None):
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                _build_in_own_scope(module)

            spec.loader.exec_module = exec_module
        return spec


def _build_in_own_scope(module) -> None:
    from mmengine.registry import DefaultScope
    init = module.BaseInferencer.__init__

    @functools.wraps(init)
    def in_own_scope(self, *args, **kwargs):
        with DefaultScope.overwrite_default_scope('mmpretrain'):
            init(self, *args, **kwargs)

    module.BaseInferencer.__init__ = in_own_scope
