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


def keep_scopes() -> None:
    """Give every inferencer its own scope, mmpretrain's as soon as they are imported."""
    from mmengine.registry import FUNCTIONS, Registry
    if FUNCTIONS._search_child('mmdet') is None:
        Registry('function', scope='mmdet', parent=FUNCTIONS)
    when_imported('mmpretrain.apis.base', _build_in_own_scope)


def when_imported(name: str, repair) -> None:
    """Call ``repair(module)`` now where the module is imported, else as soon as it is."""
    if name in sys.modules:
        repair(sys.modules[name])
    else:
        sys.meta_path.insert(0, _WhenImported(name, repair))


class _WhenImported(importlib.abc.MetaPathFinder):
    """Importing these packages takes seconds; nobody who does without should wait for them."""

    def __init__(self, name, repair):
        self.name, self.repair = name, repair

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                self.repair(module)

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
