"""Reading checkpoint files without executing code in them."""

import os
from pathlib import Path

import torch
from torch import Tensor

from mmext.checkpoints.safe_reader import read_checkpoint

WRAPPERS = ('state_dict', 'model', 'module')


def read_state_dict(path: str, prefix: str = '') -> dict[str, Tensor]:
    """The tensors of a checkpoint file.

    Args:
        path: .safetensors, or a file of ``torch.save`` holding ``state_dict``, ``model`` or bare
            tensors; or the URL of one, downloaded once into torch's hub folder.
        prefix: take only the names under it, and cut it off; 'backbone' and 'backbone.' are the
            same. Without it, a ``module.`` that DistributedDataParallel left is cut off.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file holds no tensors, none under ``prefix``, or more than data; see
            ``mmext.checkpoints.safe_reader.read_checkpoint``.
    """
    path = _local(str(path))
    if path.endswith('.safetensors'):
        from safetensors.torch import load_file
        content = load_file(path)
    else:
        content = read_checkpoint(path)
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


def _local(path: str) -> str:
    """A URL becomes a file in torch's hub folder, fetched by one process of each node."""
    if '://' not in path:
        if not Path(path).is_file():
            raise FileNotFoundError(f'checkpoint {path} does not exist')
        return path
    target = Path(torch.hub.get_dir()) / 'checkpoints' / path.split('?')[0].rsplit('/', 1)[-1]
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    if not target.exists() and int(os.environ.get('LOCAL_RANK', 0)) == 0:
        target.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(path, str(target))
    if distributed:
        torch.distributed.barrier()
    return str(target)
