"""mmcv's ops without its compiled extension, and with one where its kernels fall short.

mmcv's Python wrappers (``nms``, ``batched_nms``, ``RoIAlign``) look their kernels up in the
extension module ``mmcv._ext``. Where that is absent, a module of the same name is put in its
place: the kernels that Mask R-CNN needs come from torchvision (CPU and CUDA, same results), every
other one raises an error that names it. A compiled extension is preferred, except for tensors that
its kernels refuse (bf16; fp16 on CPU) or silently take for another layout (on CPU).
"""

import importlib
import importlib.machinery
import importlib.util
import sys
import types

import torch
from torch import Tensor

CURE = ('mmcv is installed without its compiled ops. Install a build that has them for your torch '
        'and CUDA version (docs/install.md, section "mmcv with compiled ops"), or choose a model '
        'that does not use this op.')


class MissingOpError(NotImplementedError):
    """A compiled mmcv op was called and there is neither the extension nor a stand-in."""


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int = 0) -> Tensor:
    """Indices of the kept boxes, by falling score. boxes (N, 4) xyxy, scores (N,).

    ``offset=1`` is the legacy convention in which a box is ``x2 - x1 + 1`` wide.
    """
    import torchvision
    if boxes.numel() == 0:
        return scores.new_empty(0, dtype=torch.long)
    boxes = boxes.float()
    if offset:
        boxes = boxes + boxes.new_tensor([0, 0, offset, offset])
    return torchvision.ops.nms(boxes, scores.float(), float(iou_threshold))


def roi_align_forward(input: Tensor, rois: Tensor, output: Tensor, argmax_y: Tensor,
                      argmax_x: Tensor, aligned_height: int, aligned_width: int,
                      spatial_scale: float, sampling_ratio: int, pool_mode: int,
                      aligned: bool) -> None:
    """Fill ``output`` (R, C, h, w) from ``input`` (N, C, H, W) in any memory layout.

    ``rois`` (R, 5) holds the image index and xyxy in image coordinates. Reduced precision is
    computed in fp32.
    """
    import torchvision  # noqa: F401  (registers the op)
    _require_average(pool_mode)
    pooled = torch.ops.torchvision.roi_align(
        input.float().contiguous(), rois.float(), spatial_scale, aligned_height, aligned_width,
        sampling_ratio, aligned)
    output.copy_(pooled)


def roi_align_backward(grad_output: Tensor, rois: Tensor, argmax_y: Tensor, argmax_x: Tensor,
                       grad_input: Tensor, aligned_height: int, aligned_width: int,
                       spatial_scale: float, sampling_ratio: int, pool_mode: int,
                       aligned: bool) -> None:
    """Add the gradient with respect to the features to ``grad_input`` (N, C, H, W)."""
    import torchvision  # noqa: F401
    _require_average(pool_mode)
    grad = torch.ops.torchvision._roi_align_backward(
        grad_output.float().contiguous(), rois.float(), spatial_scale, aligned_height,
        aligned_width, *grad_input.shape, sampling_ratio, aligned)
    grad_input.add_(grad.to(grad_input.dtype))


def _require_average(pool_mode: int) -> None:
    if pool_mode != 1:  # mmcv's code for 'avg'
        raise MissingOpError(f"mmcv op 'RoIAlign' with pool_mode='max' is not available: {CURE}")


def missing(name: str):
    """A callable that raises the error for op ``name``."""

    def op(*args, **kwargs):
        raise MissingOpError(f"mmcv op '{name}' is not available: {CURE}")

    op.__name__ = name
    return op


class _Extension(types.ModuleType):

    def __getattr__(self, name):
        if name.startswith('__'):
            raise AttributeError(name)
        return missing(name)


def has_compiled_ops() -> bool:
    """Whether mmcv's own extension can be found."""
    module = sys.modules.get('mmcv._ext')
    if module is not None:
        return not isinstance(module, _Extension)
    return importlib.util.find_spec('mmcv._ext') is not None


def install() -> None:
    """Put the stand-ins in place: all of them, or beside mmcv's compiled ops."""
    if 'mmcv._ext' in sys.modules and not has_compiled_ops():
        return
    if has_compiled_ops():
        extension = importlib.import_module('mmcv._ext')
        for stand_in in STAND_INS:
            compiled = getattr(extension, stand_in.__name__)
            if not hasattr(compiled, 'stand_in'):
                setattr(extension, stand_in.__name__, _prefer(compiled, stand_in))
        return
    extension = _Extension('mmcv._ext', __doc__)
    extension.__spec__ = importlib.machinery.ModuleSpec('mmcv._ext', loader=None)
    for stand_in in STAND_INS:
        setattr(extension, stand_in.__name__, stand_in)
    extension.get_compiler_version = lambda: 'not compiled (torchvision stand-ins of mmext)'
    extension.get_compiling_cuda_version = lambda: 'not available'
    sys.modules['mmcv._ext'] = extension
    import mmcv
    mmcv._ext = extension


STAND_INS = (nms, roi_align_forward, roi_align_backward)


def _prefer(compiled, stand_in):
    """The compiled kernel for what it computes rightly, the stand-in for the rest."""

    def op(*args, **kwargs):
        tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        average = kwargs.get('pool_mode', 1) == 1
        return (stand_in if average and any(map(_unfit, tensors)) else compiled)(*args, **kwargs)

    op.stand_in = stand_in
    return op


def _unfit(x: Tensor) -> bool:
    on_cpu = x.device.type == 'cpu'
    return x.dtype == torch.bfloat16 or (on_cpu and (
        x.dtype == torch.float16 or not x.is_contiguous()))
