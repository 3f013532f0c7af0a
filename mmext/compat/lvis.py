"""lvis 0.5.3, the LVIS API that mmdet's data set and metric import, with NumPy 1.24 and newer.

It writes ``np.float``, which NumPy removed; every evaluation ends there.
"""

import types

import numpy

from .inferencers import when_imported


class _NumPy(types.ModuleType):
    """NumPy with the alias, for one module; the real one stays as it is."""

    float = float

    def __getattr__(self, name: str):
        return getattr(numpy, name)


def repair_when_imported() -> None:
    when_imported('lvis.eval', lambda module: setattr(module, 'np', _NumPy('numpy')))
