"""Reading mmengine's own checkpoints without giving up torch's protection.

torch >= 2.6 unpickles only tensors and an allow-list of classes. A checkpoint of an mmengine run
also holds its log history (``HistoryBuffer`` of numpy arrays); these few classes are added.
"""

import os
import pickle

import torch


def allow_own_checkpoints() -> None:
    """Add the classes that mmengine writes into checkpoints to torch's allow-list."""
    if not hasattr(torch.serialization, 'add_safe_globals'):
        return
    import numpy as np
    from mmengine.logging import HistoryBuffer
    multiarray = getattr(np, '_core', None) or np.core
    torch.serialization.add_safe_globals([
        HistoryBuffer,
        (_history_method, 'builtins.getattr'),
        np.ndarray,
        np.dtype,
        multiarray.multiarray._reconstruct,
        multiarray.multiarray.scalar,
        *{type(np.dtype(kind)) for kind in ('f4', 'f8', 'i4', 'i8', 'u4', 'u8', 'b1')},
    ])


def _history_method(owner, name: str):
    """What ``getattr`` may do in a checkpoint: fetch the statistics methods of a log history."""
    from mmengine.logging import HistoryBuffer
    if owner is not HistoryBuffer or name.startswith('_'):
        raise pickle.UnpicklingError(f'getattr({owner!r}, {name!r}) is not allowed in a checkpoint')
    return getattr(owner, name)


def forbid_code_in_checkpoints() -> None:
    """Make every ``torch.load`` of this process refuse files that would run code.

    mmengine falls back to unrestricted unpickling when a file fails the check. The command line
    tools forbid it, unless the user trusts the files and says so with torch's own variable
    ``TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1``.
    """
    if not code_is_allowed():
        os.environ['TORCH_FORCE_WEIGHTS_ONLY_LOAD'] = '1'


def code_is_allowed() -> bool:
    """Whether the user said, with torch's variable, that checkpoints may execute code."""
    return os.environ.get('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '0').lower() in (
        '1', 'y', 'yes', 'true')
