"""Keeping a computation in the precision it is written in."""

from contextlib import nullcontext

import torch
from torch import Tensor


def no_autocast(x: Tensor):
    """Context in which operations on the device of ``x`` keep the dtype of their operands."""
    device = x.device.type
    if device == 'meta':  # tensors of shape and FLOP counters
        return nullcontext()
    return torch.autocast(device, enabled=False)


def autocast_copy(x: Tensor) -> Tensor:
    """x in the autocast dtype where autocast is on: made once, shared by several products."""
    device = x.device.type
    if device == 'meta' or not torch.is_autocast_enabled(device):
        return x
    return x.to(torch.get_autocast_dtype(device)) if x.dtype == torch.float32 else x
