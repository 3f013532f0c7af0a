"""mmpretrain's inferencers beside mmdet's in one process.

They build their test pipeline in whatever default scope is current: after a ``DetInferencer`` that
ends in "'PackInputs' is not in the mmdet::transform registry" (mmpretrain#1674).
"""

import functools
import importlib.abc
import importlib.machinery
import sys

MODULE = 'mmpretrain.apis.base'


def keep_scope() -> None:
    """Let them work in mmpretrain's scope; where it is not imported yet, as soon as it is."""
    if MODULE in sys.modules:
        _wrap(sys.modules[MODULE])
    else:
        sys.meta_path.insert(0, _WhenImported())


class _WhenImported(importlib.abc.MetaPathFinder):
    """Importing mmpretrain takes seconds, so nobody who does without it should wait for it."""

    def find_spec(self, name, path=None, target=None):
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                _wrap(module)

            spec.loader.exec_module = exec_module
        return spec


def _wrap(module) -> None:
    from mmengine.registry import DefaultScope
    init = module.BaseInferencer.__init__

    @functools.wraps(init)
    def in_own_scope(self, *args, **kwargs):
        with DefaultScope.overwrite_default_scope('mmpretrain'):
            init(self, *args, **kwargs)

    module.BaseInferencer.__init__ = in_own_scope
