"""mmcv's ops without its compiled extension, and with one where its kernels fall short.

mmcv's Python wrappers (``nms``, ``RoIAlign``, ``sigmoid_focal_loss`` ...) look their kernels up in
the extension module ``mmcv._ext``. Where that is absent, a module of the same name is put in its
place: the kernels that the zoo's detectors need (NMS, RoIAlign, focal losses, multi-scale
deformable attention) come from torchvision or mmcv's own pure-torch form (CPU and CUDA, same
results), every other one raises an error that names it. A compiled extension is preferred, except
for tensors that its kernels refuse (bf16; fp16 on CPU) or silently take for another layout (on
CPU).
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
    grad_output, rois = grad_output.float(), rois.float()
    if grad_input.is_cpu and sampling_ratio > 0:
        grad = _roi_align_gradient(
            grad_output, rois, grad_input.shape, spatial_scale, sampling_ratio, aligned)
    else:
        grad = torch.ops.torchvision._roi_align_backward(
            grad_output.contiguous(), rois, spatial_scale, aligned_height,
            aligned_width, *grad_input.shape, sampling_ratio, aligned)
    grad_input.add_(grad.to(grad_input.dtype))


def _roi_align_gradient(grad: Tensor, rois: Tensor, shape: torch.Size, scale: float,
                        sampling: int, aligned: bool) -> Tensor:
    """torchvision's gradient (N, C, H, W) with weights computed once for all channels.

    torchvision's CPU kernel computes them anew for each channel, on one thread: an eighth of the
    quickstart's training step.
    """
    images, channels, *cells = shape
    bins = grad.shape[2:]
    start = rois[:, [2, 1]] * scale - .5 * aligned
    extent = (rois[:, [4, 3]] - rois[:, [2, 1]]) * scale
    if not aligned:
        extent = extent.clamp(min=1)
    corners = []  # of y and x: index and weight (R, bins * sampling) of the two cells around
    for axis, (size, count) in enumerate(zip(cells, bins, strict=True)):
        steps = (torch.arange(count * sampling) + .5) / (count * sampling)
        at = start[:, axis, None] + steps * extent[:, axis, None]
        inside = ((at >= -1) & (at <= size)).float()
        at = at.clamp(0, size - 1)
        low = at.floor()
        corners.append([(low.long(), (1 - at + low) * inside),
                        ((low + 1).clamp(max=size - 1).long(), (at - low) * inside)])
    rows = (grad / sampling**2).permute(0, 2, 3, 1).reshape(-1, channels)
    image = rois[:, 0].long()[:, None, None] * cells[0]
    out = rows.new_zeros(images * cells[0] * cells[1], channels)
    for y, weight_y in corners[0]:
        for x, weight_x in corners[1]:
            for i in range(sampling):
                for j in range(sampling):
                    cell = (image + y[:, i::sampling, None]) * cells[1] + x[:, None, j::sampling]
                    weight = weight_y[:, i::sampling, None] * weight_x[:, None, j::sampling]
                    out.index_add_(0, cell.flatten(), rows * weight.reshape(-1, 1))
    return out.view(images, *cells, channels).permute(0, 3, 1, 2)


def _require_average(pool_mode: int) -> None:
    if pool_mode != 1:  # mmcv's code for 'avg'
        raise MissingOpError(f"mmcv op 'RoIAlign' with pool_mode='max' is not available: {CURE}")


# ------------------------------------------------------------------------------- focal losses


def sigmoid_focal_loss_forward(input: Tensor, target: Tensor, weight: Tensor, output: Tensor,
                               gamma: float, alpha: float) -> None:
    """Fill ``output`` (N, C) with the loss of every logit of ``input`` (N, C).

    ``target`` (N,) holds classes 0 to C - 1, or C for background. ``weight`` (C,) or empty: of
    the target's class; background weighs 1 (mmcv's kernels read past the end there).
    """
    output.copy_(_sigmoid_focal_loss(_at_least_fp32(input), target, weight, gamma, alpha))


def sigmoid_focal_loss_backward(input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor,
                                gamma: float, alpha: float) -> None:
    """Fill ``grad_input`` (N, C) with the derivative of every loss by its logit."""
    grad_input.copy_(_gradients(
        lambda x: _sigmoid_focal_loss(x, target, weight, gamma, alpha), [input])[0])


def _sigmoid_focal_loss(input, target, weight, gamma, alpha):
    from torchvision.ops import sigmoid_focal_loss
    classes = input.shape[1]
    one_hot = torch.nn.functional.one_hot(target, classes + 1)[:, :classes].to(input)
    loss = sigmoid_focal_loss(input, one_hot, alpha, gamma)
    return loss * _weight_of(target, weight, classes)[:, None] if weight.numel() else loss


def _weight_of(target: Tensor, weight: Tensor, classes: int) -> Tensor:
    return torch.cat([weight, weight.new_ones(1)])[target.clamp(max=classes)]


def softmax_focal_loss_forward(input: Tensor, target: Tensor, weight: Tensor, output: Tensor,
                               gamma: float, alpha: float) -> None:
    """Fill ``output`` (N,) from probabilities ``input`` (N, C).

    ``target`` (N,) holds classes, negative ones count nothing; ``weight`` (C,) or empty.
    """
    p, scale = _target_probability(input, target, weight, alpha)
    output.copy_(-scale * (1 - p)**gamma * p.log())


def softmax_focal_loss_backward(input: Tensor, target: Tensor, weight: Tensor, buff: Tensor,
                                grad_input: Tensor, gamma: float, alpha: float) -> None:
    """Fill ``grad_input`` (N, C) with the derivative by the logits behind ``input`` (N, C).

    ``buff`` (N,) takes what all classes share: the derivative by log p of the target's class.
    """
    p, scale = _target_probability(input, target, weight, alpha)
    buff.copy_(scale * (gamma * (1 - p)**(gamma - 1) * p * p.log() - (1 - p)**gamma))
    one_hot = torch.zeros_like(input).scatter_(1, target.clamp(min=0)[:, None], 1)
    grad_input.copy_(buff[:, None] * (one_hot - input))


def _target_probability(input, target, weight, alpha):
    """Probability (N,) of the target's class and the factor (N,) before its loss, 0 = ignored."""
    label = target.clamp(min=0)
    input = _at_least_fp32(input)
    p = input.gather(1, label[:, None])[:, 0].clamp(min=torch.finfo(input.dtype).tiny)
    scale = alpha * (target >= 0).to(input)
    return p, scale * weight[label] if weight.numel() else scale


# ------------------------------------------------------------ multi-scale deformable attention


def ms_deform_attn_forward(value: Tensor, value_spatial_shapes: Tensor,
                           value_level_start_index: Tensor, sampling_locations: Tensor,
                           attention_weights: Tensor, im2col_step: int) -> Tensor:
    """Weighted sums of sampled values, (B, queries, heads * d).

    ``value`` (B, tokens of all levels, heads, d); ``value_spatial_shapes`` (levels, 2), h and w;
    ``sampling_locations`` (B, queries, heads, levels, points, 2), x and y in 0..1 of a level;
    ``attention_weights`` the same without the last axis.
    """
    out = _deformable_attention(value_spatial_shapes, *map(
        _at_least_fp32, (value, sampling_locations, attention_weights)))
    return out.to(value.dtype)


def ms_deform_attn_backward(value: Tensor, value_spatial_shapes: Tensor,
                            value_level_start_index: Tensor, sampling_locations: Tensor,
                            attention_weights: Tensor, grad_output: Tensor, grad_value: Tensor,
                            grad_sampling_loc: Tensor, grad_attn_weight: Tensor,
                            im2col_step: int) -> None:
    """Add the gradients to ``grad_value``, ``grad_sampling_loc`` and ``grad_attn_weight``."""
    grads = _gradients(lambda *inputs: _deformable_attention(value_spatial_shapes, *inputs),
                       [value, sampling_locations, attention_weights], grad_output)
    for total, grad in zip((grad_value, grad_sampling_loc, grad_attn_weight), grads, strict=True):
        total.add_(grad.to(total.dtype))


def _deformable_attention(shapes, value, locations, weights):
    from mmcv.ops.multi_scale_deform_attn import multi_scale_deformable_attn_pytorch
    return multi_scale_deformable_attn_pytorch(value, shapes.tolist(), locations, weights)


def _at_least_fp32(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _gradients(function, inputs: list[Tensor], grad_output: Tensor | None = None) -> list[Tensor]:
    """Gradients of ``function(*inputs)`` by its inputs, in fp32 or better."""
    inputs = [_at_least_fp32(x.detach()).requires_grad_() for x in inputs]
    with torch.enable_grad():
        out = function(*inputs)
    grad = torch.ones_like(out) if grad_output is None else grad_output.to(out.dtype)
    return torch.autograd.grad(out, inputs, grad)


# ---------------------------------------------------------------------------------- the module


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


STAND_INS = (nms, roi_align_forward, roi_align_backward, sigmoid_focal_loss_forward,
             sigmoid_focal_loss_backward, softmax_focal_loss_forward, softmax_focal_loss_backward,
             ms_deform_attn_forward, ms_deform_attn_backward)


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
