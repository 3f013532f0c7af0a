"""Reading files without executing code in them and without believing damaged ones.

What is verified, before anything of a file is used:

- ``torch.save`` since torch 1.6 (a zip): the CRC-32 of every record, which torch itself ignores;
- a hash in the name (``model-0a1b2c3d.pth``, as publish_model, mmdet and torch.hub write it): the
  SHA-256 of the file;
- older ``torch.save`` and .safetensors: sizes, and that no tensor has a few values no weight can
  have. These formats carry no checksum, so that a file of theirs without a hash in its name is
  loaded with a warning that says so.

See also ``mmext.compat.torch_load`` and, for what mmengine reads, ``mmengine_loading``.
"""

import argparse
import contextlib
import hashlib
import importlib
import io
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping

import torch

from mmext.compat.torch_load import allow_own_checkpoints

TRUST = 'If it is your own and you trust it, set TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1.'
# eight hexadecimal digits or more; digits alone are a date or a number of iterations
HASH = re.compile(r'-(?=\d*[a-f])([0-9a-f]{8,64})\.\w+$')
LARGEST = 1e10  # beyond it no weight, statistic or moment of an optimizer lies
_verified: dict[tuple, bool] = {}


class UnreadableCheckpoint(ValueError):
    """A file is damaged, or would execute code; the message says which, and the cure."""


def read_checkpoint(path: str, mmap: bool = False, map_location='cpu'):
    """``torch.load`` that executes no code, unless the user allowed it, and verifies the file.

    Args:
        path: file of ``torch.save``, or .safetensors, which gives its tensors by name.
        mmap: map the tensors of a file of today's format instead of copying them.

    Raises:
        UnreadableCheckpoint: the file is damaged, no checkpoint, or more than data.
    """
    path = os.path.expanduser(str(path))
    has_checksum = verify(path)
    content = _read(path, mmap, map_location)
    if not has_checksum:
        for name, value, count, total in odd_values(content):
            raise UnreadableCheckpoint(
                f'{path} is damaged: {name} holds {value:.3g} in {count} of {total} values, which '
                'no weight is. Take another copy; if that is meant, put the start of the SHA-256 '
                'of the file into its name (NAME-<8 digits>.SUFFIX), which is verified instead.')
        warnings.warn(
            f'{path}: files of this format carry no checksum, so damage to the weights would not '
            'be noticed. A hash in the name (NAME-<first 8 digits of its SHA-256>.SUFFIX) is '
            'verified.', stacklevel=2)
    return content


def _read(path: str, mmap: bool, map_location):
    if path.endswith('.safetensors'):
        return _read_safetensors(path, map_location)
    allow_own_checkpoints()
    options = {'weights_only': not code_is_allowed(), 'map_location': map_location}
    try:
        # MAE's and DeiT's files hold the arguments of their training
        with torch.serialization.safe_globals([argparse.Namespace]), open(path, 'rb') as file:
            if zipfile.is_zipfile(path):
                return torch.load(path, mmap=mmap, **options)
            content = torch.load(file, **options)
            if file.read(1):
                raise EOFError('bytes follow its end')
            return content
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


def _read_safetensors(path: str, map_location) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file
    device = map_location if isinstance(map_location, (str, torch.device)) else 'cpu'
    try:
        return load_file(path, device=str(device))
    except Exception as error:  # its own class, OSError, or torch's for an impossible shape
        raise UnreadableCheckpoint(f'{path} is damaged or no safetensors file: {error}') from error


# --------------------------------------------------------------------------------- verification
def odd_values(content, name: str = '') -> Iterator[tuple[str, float, int, int]]:
    """Tensors of which a few values are beyond 1e10 or not finite, as flipped exponents are.

    A flip of the highest bit of the exponent takes any weight below 1 there. Masks of -inf and
    runs that diverged have more than a few such values (1 %), single numbers may be anything.

    Yields:
        name, one such value, how many of them, number of values of the tensor.
    """
    if isinstance(content, torch.Tensor):
        if content.is_floating_point() and content.numel() > 1:
            low, high = torch.aminmax(content)  # in one pass, and nan where there is one
            if not (low >= -LARGEST and high <= LARGEST):
                odd = content[~(content.abs() <= LARGEST)]
                if len(odd) <= max(1, content.numel() // 100):
                    yield name, odd[0].item(), len(odd), content.numel()
        return
    items = content.items() if isinstance(content, Mapping) else (
        enumerate(content) if isinstance(content, (list, tuple)) else ())
    for key, value in items:
        yield from odd_values(value, f'{name}.{key}' if name else str(key))


def promised_hash(path: str) -> str | None:
    """The start of the SHA-256 that a published name ends in."""
    found = HASH.search(os.path.basename(path))
    return found[1] if found else None


def verify(path: str) -> bool:
    """Read a file and hold it against its checksums; done once a process for each file.

    Returns:
        whether it has any.

    Raises:
        UnreadableCheckpoint: it is not what was written.
    """
    status = os.stat(path)
    key = (os.path.realpath(path), status.st_size, status.st_mtime_ns)
    if key in _verified:
        return _verified[key]
    promised = promised_hash(path)
    with open(path, 'rb') as file:
        is_zip = file.read(4) == b'PK\x03\x04'
    if promised:
        digest = _sha256(path)
        if not digest.startswith(promised):
            raise UnreadableCheckpoint(
                f"{path} is damaged or not the published file: its name promises SHA-256 "
                f'{promised}..., it has {digest[:len(promised)]}... Download it again; if you '
                f'changed it yourself, or {promised} is no hash, rename the file.')
    elif is_zip:
        damaged = _first_damaged_record(path)
        if damaged:
            raise UnreadableCheckpoint(
                f'{path} is damaged: {damaged}. Take another copy, or an earlier checkpoint.')
    _verified[key] = bool(promised) or is_zip
    return _verified[key]


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, 'rb') as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def _first_damaged_record(path: str) -> str | None:
    try:
        with zipfile.ZipFile(path) as archive:
            name = archive.testzip()
    except Exception as error:  # BadZipFile, and whatever a damaged header leads to
        return str(error) or type(error).__name__
    return name and f'the checksum of {name} in it does not match'


# -------------------------------------------------------------------------------- other pickles
DATA_ONLY = {
    'builtins': {'set', 'frozenset', 'complex', 'bytearray', 'slice', 'range'},
    '__builtin__': {'set', 'frozenset', 'complex', 'bytearray', 'slice', 'xrange'},
    'collections': {'OrderedDict', 'deque'},
    '_codecs': {'encode'},
    'numpy': {'ndarray', 'dtype'},
    **{f'numpy.{core}.multiarray': {'_reconstruct', 'scalar'} for core in ('core', '_core')},
    **{f'numpy.{core}.numeric': {'_frombuffer'} for core in ('core', '_core')},
    'torch': {'Size', 'device'},
    'torch._utils': {'_rebuild_tensor_v2', '_rebuild_parameter'},
}


class _DataOnly(pickle.Unpickler):
    """Python's containers, numpy's arrays and torch's tensors; nothing that can run code."""

    def find_class(self, module: str, name: str):
        if name in DATA_ONLY.get(module, ()):
            if name.startswith('_') and module.startswith('numpy'):
                with contextlib.suppress(ImportError):  # numpy 1 and 2 read each other's
                    return getattr(importlib.import_module(module), name)
                other = module.replace('._core.', '.core.') if '._core.' in module else (
                    module.replace('.core.', '._core.'))
                return getattr(importlib.import_module(other), name)
            return super().find_class(module, name)
        if module == 'numpy.dtypes' and name.endswith('DType'):
            return super().find_class(module, name)
        if (module, name) == ('torch.storage', '_load_from_bytes'):
            return lambda data: torch.load(io.BytesIO(data), weights_only=True)
        if module == 'torch' and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f'GLOBAL {module}.{name}')


def read_pickle(file, name: str, **kwargs):
    """``pickle.load`` of results and the like: numbers, containers, arrays and tensors alone.

    Args:
        file: open in binary mode; ``name`` is for messages.

    Raises:
        UnreadableCheckpoint: it is damaged, or holds anything else and the user did not allow it.
    """
    if code_is_allowed():
        return pickle.load(file, **kwargs)
    try:
        return _DataOnly(file, **kwargs).load()
    except Exception as error:  # damaged pickles raise anything
        code = re.search(r'GLOBAL (\S+)', str(error))
        if code:
            raise UnreadableCheckpoint(
                f'{name} is not loaded: it cannot be read without executing code in it '
                f'({code[1]}). {TRUST}') from error
        raise UnreadableCheckpoint(f'{name} is damaged or no pickle: {error}') from error


# ------------------------------------------------------------------------------------- permission
def forbid_code_in_checkpoints() -> None:
    """Make every ``torch.load`` of this process refuse files that would run code.

    What mmengine loads is guarded by ``import mmext.registry`` already; the command line tools
    forbid it everywhere, unless the user trusts the files and says so with torch's own variable
    ``TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1``.
    """
    if not code_is_allowed():
        os.environ['TORCH_FORCE_WEIGHTS_ONLY_LOAD'] = '1'


def code_is_allowed() -> bool:
    """Whether the user said, with torch's variable, that checkpoints may execute code."""
    return os.environ.get('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '0').lower() in (
        '1', 'y', 'yes', 'true')
