"""FLOPs counted by running a model once, on any device and with any attention backend.

What counts: convolutions (transposed too), linear layers, matrix products and attention, at two
FLOPs a multiply-accumulate. What does not: softmax, normalizations, activations, top-k, gathers,
additive biases and element-wise products, among them the token statistics of TSSA and DMSA where
they run as multiply-and-sum (N*d MACs a layer, 1/(2d) of it; where an implementation runs them as
a matrix product they are counted, as ``mmext.analysis.flop_formulas`` does).

PyTorch's ``FlopCounterMode`` knows the CUDA attention kernels but neither the fused CPU kernel
nor vector products; without the additions below attention would silently count as zero on CPU
(https://github.com/pytorch/pytorch/issues/195460).
"""

from collections.abc import Callable
from contextlib import contextmanager
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from mmext.ops.key_bias_attention import use_form

aten = torch.ops.aten


class FlopCount(NamedTuple):
    """``total`` FLOPs; ``by_op`` {operator: FLOPs}; ``by_module`` {dotted name: FLOPs}."""

    total: int
    by_op: dict[str, int]
    by_module: dict[str, int]

    @property
    def gflops(self) -> float:
        return self.total / 1e9


def _attention(q, k, v, *args, out_shape=None, **kwargs) -> int:
    """Logits and values; q (B, H, N, D), k (B, H', K, D), v (B, H', K, D')."""
    return 2 * prod(q[:-1]) * k[-2] * (q[-1] + v[-1])


def _mv(matrix, vector, *args, out_shape=None, **kwargs) -> int:
    return 2 * prod(matrix)


def _addmv(bias, matrix, vector, *args, out_shape=None, **kwargs) -> int:
    return 2 * prod(matrix)


def _dot(a, b, *args, out_shape=None, **kwargs) -> int:
    return 2 * prod(a)


def _addbmm(bias, a, b, *args, out_shape=None, **kwargs) -> int:
    return 2 * prod(a) * b[-1]


def _handlers() -> dict[object, Callable]:
    named = {
        '_scaled_dot_product_flash_attention_for_cpu': _attention,
        '_scaled_dot_product_fused_attention_overrideable': _attention,
        'mv': _mv,
        'addmv': _addmv,
        'dot': _dot,
        'vdot': _dot,
        'addbmm': _addbmm,
    }
    return {getattr(aten, name): rule for name, rule in named.items() if hasattr(aten, name)}


@contextmanager
def _plain_kernels():
    """Switch off what has no rule, or changes the count without changing the work.

    nn.MultiheadAttention's fast path is one opaque kernel; key-bias attention widens the heads to
    carry the bias where a kernel refuses masks, which is no work of the method.
    """
    fastpath = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with use_form('mask'):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fastpath)


@torch.no_grad()
def count_flops(function: Callable, *args, **kwargs) -> FlopCount:
    """Run ``function(*args, **kwargs)`` once without gradients and count its FLOPs.

    Args:
        function: a module or any callable. A module is run in the mode (train or eval) it is in:
            key-value pruning by masks, the usual training mode, saves nothing and shows nothing.

    Returns:
        FlopCount. ``by_module`` names are relative to the module given ('' is the whole); for a
        plain function they start with the class name of the outermost module called.
    """
    with _plain_kernels(), FlopCounterMode(
            display=False, custom_mapping=_handlers()) as counter:
        function(*args, **kwargs)
    counts = counter.get_flop_counts()
    by_op = {str(op): n for op, n in counts.get('Global', {}).items()}
    root = type(function).__name__ if isinstance(function, nn.Module) else None
    by_module = {}
    for name, ops in counts.items():
        if name == 'Global' and root is not None:
            continue
        if root is not None and (name == root or name.startswith(root + '.')):
            name = name[len(root) + 1:]
        by_module[name] = sum(ops.values())
    return FlopCount(sum(by_op.values()), by_op, by_module)


def drop_values(model: nn.Module) -> FakeTensorMode:
    """Replace every parameter and buffer by its shape, in place; the model is of no other use then.

    Counting inside the mode returned computes nothing, so a ViT-L at 1024 x 1024 takes a second:

        with drop_values(model):
            count = count_flops(model, torch.rand(1, 3, 1024, 1024))

    Models whose shapes depend on values (a probability threshold, regions of a detector) fail.
    """
    mode = FakeTensorMode()
    for module in model.modules():
        for name, value in list(module._parameters.items()):
            if value is not None:
                fake = mode.from_tensor(value.detach())
                module._parameters[name] = nn.Parameter(fake, requires_grad=False)
        for name, value in list(module._buffers.items()):
            if value is not None:
                module._buffers[name] = mode.from_tensor(value)
    return mode


# ---- whole models of mmpretrain and mmdet, part by part --------------------------------------


def spread_boxes(num: int, shape: tuple[int, int], like: Tensor) -> Tensor:
    """(num, 5) regions (image 0, x1, y1, x2, y2) of growing size, inside an image (H, W)."""
    h, w = shape
    share = torch.linspace(0.02, 0.9, num, dtype=torch.float32, device=like.device)
    rois = torch.zeros(num, 5, dtype=torch.float32, device=like.device)
    rois[:, 3], rois[:, 4] = share * w, share * h
    return rois.to(like.dtype)


def count_by_part(model: nn.Module,
                  image: Tensor,
                  proposals: int = 1000,
                  boxes: int = 100,
                  backbone_only: bool = False) -> dict[str, FlopCount]:
    """FLOPs of a classifier or detector, by part, without any data set.

    Args:
        model: has ``backbone`` and optionally ``neck``; then ``rpn_head`` and ``roi_head``, or
            ``bbox_head`` (one-stage), or ``head`` (classifier). Put it in eval mode first.
        image: (1, C, H, W) network input.
        proposals, boxes: numbers of regions for the box and the mask head of a two-stage
            detector, fixed so that the count does not depend on what is in the image. 1,000 and
            100 are the test-time caps.

    Returns:
        Dict part -> FlopCount in running order.

    Raises:
        TypeError: the model has no ``backbone``.
    """
    if not hasattr(model, 'backbone'):
        raise TypeError(f'{type(model).__name__} has no backbone; count it with count_flops')
    parts, kept = {}, {}

    def run(name, module, *inputs):
        def call(*x):
            kept[name] = module(*x)

        count = count_flops(call, *inputs)
        root = type(module).__name__
        by_module = {
            name + key[len(root):] if key == root or key.startswith(root + '.') else key: n
            for key, n in count.by_module.items() if key != 'Global'
        }
        parts[name] = count._replace(by_module=by_module)
        return kept[name]

    features = run('backbone', model.backbone, image)
    if backbone_only:
        return parts
    if getattr(model, 'neck', None) is not None:
        features = run('neck', model.neck, features)
    if hasattr(model, 'roi_head'):
        if getattr(model, 'rpn_head', None) is not None:
            run('rpn_head', model.rpn_head, features)
        roi = model.roi_head
        rois = spread_boxes(proposals, image.shape[-2:], features[0])
        mask_rois = spread_boxes(boxes, image.shape[-2:], features[0])
        cascade = isinstance(roi.bbox_head, nn.ModuleList)  # every stage sees all regions
        stages = [(i,) for i in range(roi.num_stages)] if cascade else [()]
        run('bbox_head', lambda x: [roi._bbox_forward(*i, x, rois) for i in stages], features)
        if roi.with_mask:
            run('mask_head', lambda x: [roi._mask_forward(*i, x, mask_rois) for i in stages],
                features)
    elif hasattr(model, 'bbox_head'):
        run('bbox_head', model.bbox_head, features)
    elif getattr(model, 'head', None) is not None:
        run('head', model.head, features)
    return parts
