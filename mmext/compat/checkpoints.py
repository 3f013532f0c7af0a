"""Reading mmengine's own checkpoints without giving up torch's protection.

torch >= 2.6 unpickles only tensors and an allow-list of classes. A checkpoint of an mmengine run
also holds its log history (``HistoryBuffer`` of numpy arrays); these few classes are added.
"""

import argparse
import importlib
import os
import pickle
import re
import zipfile

import torch

TRUST = 'If it is your own and you trust it, set TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1.'


class UnreadableCheckpoint(ValueError):
    """A file is damaged, or would execute code; the message says which, and the cure."""


def read_checkpoint(path: str, mmap: bool = False):
    """``torch.load`` to the CPU that executes no code, unless the user allowed it.

    Args:
        mmap: map the tensors of a file of today's format instead of reading them.

    Raises:
        UnreadableCheckpoint: the file is damaged, no checkpoint, or more than data.
    """
    allow_own_checkpoints()
    options = {'weights_only': not code_is_allowed(), 'mmap': mmap and zipfile.is_zipfile(path)}
    try:
        # MAE's and DeiT's files hold the arguments of their training
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location='cpu', **options)
    except Exception as error:  # what damaged or foreign files raise has no common class
        code = re.search(r'GLOBAL (\S+)|(getattr\(.*\)) is not allowed', str(error))
        if code:
            raise UnreadableCheckpoint(
                f'{path} is not loaded: it cannot be read without executing code in it '
                f'({code[1] or code[2]}). {TRUST}') from error
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[0].split('. ')[0] if lines else 'it ends too early'
        if isinstance(error, pickle.UnpicklingError):  # the first lines are general advice
            reason = next((line for line in lines if line.startswith('Unsupported')), reason)
        raise UnreadableCheckpoint(
            f'{path} is damaged or no checkpoint that can be read without executing code in it: '
            f'{reason}.') from error


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
