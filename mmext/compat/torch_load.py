"""torch's allow-list extended by the classes that mmengine writes into its own checkpoints.

torch >= 2.6 unpickles only tensors and an allow-list of classes. A checkpoint of an mmengine run
also holds its log history (``HistoryBuffer`` of numpy arrays); these few classes are added.
"""

import importlib
import pickle

import torch


def allow_own_checkpoints() -> None:
    """Add the classes that mmengine writes into checkpoints to torch's allow-list."""
    if not hasattr(torch.serialization, 'add_safe_globals'):
        return
    import numpy as np
    from mmengine.logging import HistoryBuffer
    # numpy 1 and 2 write different names of the same functions; either reads both
    name = 'numpy._core.multiarray' if np.__version__ >= '2' else 'numpy.core.multiarray'
    multiarray = importlib.import_module(name)
    torch.serialization.add_safe_globals([
        HistoryBuffer,
        (_history_method, 'builtins.getattr'),
        np.ndarray,
        np.dtype,
        *[(getattr(multiarray, function), f'numpy.{core}.multiarray.{function}')
          for core in ('core', '_core') for function in ('_reconstruct', 'scalar')],
        *{type(np.dtype(kind)) for kind in ('f4', 'f8', 'i4', 'i8', 'u4', 'u8', 'b1')},
    ])


def _history_method(owner, name: str):
    """What ``getattr`` may do in a checkpoint: fetch the statistics methods of a log history."""
    from mmengine.logging import HistoryBuffer
    if owner is not HistoryBuffer or name.startswith('_'):
        raise pickle.UnpicklingError(f'getattr({owner!r}, {name!r}) is not allowed in a checkpoint')
    return getattr(owner, name)
