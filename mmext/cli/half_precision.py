"""Inference in half precision: autocast around a model's test step, full precision out of it."""

import torch
from mmengine.structures import BaseDataElement
from torch import Tensor, nn

DTYPES = {'bf16': torch.bfloat16, 'fp16': torch.float16}


def use_half_precision(model: nn.Module, name: str) -> None:
    """Let ``model.test_step`` run under autocast to ``DTYPES[name]``; parameters stay as they are.

    What it returns is full precision again: NumPy knows no bf16, and metrics sort by score.
    """
    step, dtype = model.test_step, DTYPES[name]
    device = next(model.parameters()).device.type

    def test_step(data):
        with torch.autocast(device, dtype):
            samples = step(data)
        for sample in samples:
            _to_full(sample)
        return samples

    model.test_step = test_step


def _to_full(element: BaseDataElement) -> None:
    for name, value in list(element.items()):
        if isinstance(value, BaseDataElement):
            _to_full(value)
        elif isinstance(value, Tensor) and value.dtype in DTYPES.values():
            setattr(element, name, value.float())
