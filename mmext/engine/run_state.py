"""What a checkpoint must hold beside weights, and what it must not: random states, NaN."""

import random
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor


def random_state() -> dict:
    """The states of Python's, numpy's and torch's generators of this process.

    As tensors and numbers, so that a checkpoint with it needs no permission to be read.
    """
    version, numbers, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state()
    state = {
        'python': (version, torch.tensor(numbers), gauss),
        'numpy': (name, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, cached),
        'torch': torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state['cuda'] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: dict) -> None:
    """Undo of :func:`random_state`; that of a GPU is left out where there is none."""
    version, numbers, gauss = state['python']
    random.setstate((version, tuple(numbers.tolist()), gauss))
    name, keys, position, has_gauss, cached = state['numpy']
    np.random.set_state(
        (name, keys.cpu().numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state['torch'].cpu())
    if 'cuda' in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state['cuda'].cpu())


def not_finite(content, name: str = '') -> Iterator[str]:
    """Names of the floating point tensors in nested dicts and lists that hold NaN or infinity."""
    if isinstance(content, Tensor):
        if content.is_floating_point() and not torch.isfinite(content).all():
            yield name
        return
    items = content.items() if isinstance(content, dict) else (
        enumerate(content) if isinstance(content, (list, tuple)) else ())
    for key, value in items:
        yield from not_finite(value, f'{name}.{key}' if name else str(key))
