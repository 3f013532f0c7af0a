"""Reading checkpoints without executing code in them; see also ``mmext.compat.torch_load``."""

import argparse
import os
import pickle
import re
import zipfile

import torch

from mmext.compat.torch_load import allow_own_checkpoints

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
