"""Reading checkpoint files and URLs without executing code in them."""

import contextlib
import fcntl
import hashlib
import warnings
from pathlib import Path
from urllib.parse import unquote, urlparse

import torch
from torch import Tensor

from mmext.checkpoints.safe_reader import (
    UnreadableCheckpoint,
    promised_hash,
    read_checkpoint,
)

WRAPPERS = ('state_dict', 'model', 'module')
LOOPBACK = ('localhost', '127.0.0.1', '::1')


def read_state_dict(path: str, prefix: str = '', mmap: bool = False) -> dict[str, Tensor]:
    """The tensors of a checkpoint file.

    Args:
        path: .safetensors, or a file of ``torch.save`` holding ``state_dict``, ``model`` or bare
            tensors; or the URL of one, see ``fetch``.
        prefix: take only the names under it, and cut it off; 'backbone' and 'backbone.' are the
            same. Without it, a ``module.`` that DistributedDataParallel left is cut off.
        mmap: see ``read_checkpoint``.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file holds no tensors, none under ``prefix``, or more than data; see
            ``mmext.checkpoints.safe_reader.read_checkpoint``.
    """
    path = local_file(str(path))
    return state_of(read_checkpoint(path, mmap), path, prefix)


def state_of(content, path: str, prefix: str = '') -> dict[str, Tensor]:
    """The tensors in what was read from ``path``; see :func:`read_state_dict`."""
    for key in WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
            break
    state = content if isinstance(content, dict) else {}
    state = {key: value for key, value in state.items() if isinstance(value, Tensor)}
    if not state:
        raise ValueError(f'{path} holds no tensors, neither at its top level nor under '
                         f'{", ".join(WRAPPERS)}')
    if all(key.startswith('module.') for key in state):
        state = cut_prefix(state, 'module.')
    if not prefix:
        return state
    cut = cut_prefix(state, prefix.rstrip('.') + '.')
    if not cut:
        tops = sorted({key.split('.')[0] for key in state})
        raise ValueError(f'no name in {path} starts with prefix {prefix!r}; its names start with '
                         f'{", ".join(tops[:8])}')
    return cut


def cut_prefix(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The entries under ``prefix``, with it cut off."""
    return {key[len(prefix):]: value for key, value in state.items() if key.startswith(prefix)}


# ------------------------------------------------------------------------------------ downloads
def local_file(path: str) -> str:
    """``path`` itself, or the local copy of a URL, fetched where there is none.

    Raises:
        FileNotFoundError: there is no such file.
    """
    if '://' in path:
        return fetch(path)
    if not Path(path).expanduser().is_file():
        raise FileNotFoundError(f'checkpoint {path} does not exist')
    return path


def cached(url: str) -> Path:
    """Where the local copy of a URL lies, or would lie.

    A folder of its own for each URL in torch's hub folder: another file of the same name is not
    taken for it. A file put into the hub folder by hand, or by torch.hub or timm, is taken where
    the hash in its name says that it is the same.
    """
    folder = Path(torch.hub.get_dir()) / 'checkpoints'
    name = unquote(Path(urlparse(url).path).name) or 'checkpoint'
    by_hand = folder / name
    if promised_hash(name) and by_hand.is_file():
        return by_hand
    return folder / hashlib.sha256(url.encode()).hexdigest()[:16] / name


def fetch(url: str) -> str:
    """Download a checkpoint once; further processes and calls wait for it and take the copy.

    It gets its name only when it is complete and can be read as a checkpoint.

    Raises:
        ValueError: the URL is no http(s), or plain http without a hash in the name.
        UnreadableCheckpoint: what came is no checkpoint, cut short, or not what the hash says.
        OSError: the server cannot be reached or refuses; with its status.
    """
    parts = urlparse(url)
    if parts.scheme not in ('http', 'https'):
        raise ValueError(f'{url}: only http:// and https:// are fetched; give a file')
    target = cached(url)
    if target.is_file():
        return str(target)
    promised = promised_hash(target.name)
    if parts.scheme == 'http' and not promised and parts.hostname not in LOOPBACK:
        raise ValueError(
            f'{url} is not fetched: over plain http anybody on the way may change it, and its '
            'name has no hash to verify. Use https://, or download it yourself and give the file.')
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.parent / '.lock', 'w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other processes of this node wait here
        if not target.is_file():
            part = target.parent / f'unfinished.{target.name}'  # the suffix stays, it is looked at
            try:
                _download(url, part)
                part.replace(target)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    part.unlink()
    return str(target)


def _download(url: str, part: Path) -> None:
    try:
        torch.hub.download_url_to_file(url, str(part), promised_hash(part.name))
    except RuntimeError as error:  # the hash
        raise UnreadableCheckpoint(
            f'{url}: what came is damaged or another file: {error}. Nothing is kept.') from error
    with open(part, 'rb') as file:
        start = file.read(256).lstrip().lower()
    if start.startswith((b'<!doctype', b'<html', b'<?xml')):
        raise UnreadableCheckpoint(
            f'{url} gives a web page, not a checkpoint: look at it in a browser, and use the link '
            'to the file itself. Nothing is kept.')
    try:
        if promised_hash(part.name) is None:
            with warnings.catch_warnings():
                warnings.simplefilter('ignore')  # it comes when the file is used
                read_checkpoint(str(part), mmap=True)
    except UnreadableCheckpoint as error:
        raise UnreadableCheckpoint(
            f'{url}: {str(error).replace(str(part), "what came")} Nothing is kept.') from error
