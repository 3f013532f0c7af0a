"""Inference in half precision: autocast around a model's test step, full precision out of it."""

import re

import torch
from mmengine.structures import BaseDataElement
from torch import Tensor, nn

DTYPES = {'bf16': torch.bfloat16, 'fp16': torch.float16}
# Modules whose outputs become boxes: at pixel 100 numbers of bf16 are half a pixel apart
HEADS = re.compile(r'mmdet\.models\.(dense_heads|seg_heads|roi_heads\.(bbox|mask)_heads)\.')


def use_half_precision(model: nn.Module, name: str) -> None:
    """Let ``model.test_step`` run under autocast to ``DTYPES[name]``; parameters stay as they are.

    What mmdet's heads put out is full precision, so that boxes are decoded in it. What it returns
    is full precision, too: NumPy knows no bf16, and metrics sort by score.
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
    for module in model.modules():
        if any(HEADS.match(base.__module__) for base in type(module).__mro__):
            module.register_forward_hook(lambda module, args, out: _full(out))


def _full(out):
    """Half-precision tensors to full precision, in nested lists and tuples."""
    if isinstance(out, Tensor):
        return out.float() if out.dtype in DTYPES.values() else out
    return type(out)(map(_full, out)) if isinstance(out, (list, tuple)) else out


def _to_full(element: BaseDataElement) -> None:
    for name, value in list(element.items()):
        if isinstance(value, BaseDataElement):
            _to_full(value)
        elif isinstance(value, Tensor):
            setattr(element, name, _full(value))
