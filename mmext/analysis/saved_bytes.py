"""Bytes that autograd keeps for backward, counted with saved-tensor hooks."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


def saved_bytes(fn: Callable[[], object]) -> int:
    """Bytes held for the backward pass of ``fn()``.

    Every storage counts once and in full, however many tensors or views of it are saved:
    that is the memory which stays allocated. Parameters and views of them do not count, they are
    there anyway; a copy of a parameter (autocast's, for one) does.

    Args:
        fn: runs the forward pass; the input should require a gradient as it does inside a model.
    """
    kept = {}  # holding the tensors keeps an address from being used twice

    def pack(tensor: Tensor) -> Tensor:
        if not _is_parameter(tensor):
            kept[tensor.device, tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = fn()
    total = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    del output
    return total


def _is_parameter(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)
