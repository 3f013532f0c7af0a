"""Common layers as they run where no gradient is recorded: the same values, fewer temporaries.

Everything here falls back to the modules as they are where gradients are recorded, where a compiler
or exporter traces, and where a module is not the plain one (adapters, quantized layers, hooks).
"""

import torch
import torch.nn.functional as F
from timm.layers import Mlp
from torch import Tensor, nn

from mmext.layers.common import has_hooks, is_plain_linear
from mmext.ops.autograd import plain

HIDDEN = 2**22  # numbers of a hidden layer that are held at a time: 16 MB in fp32


def records_nothing() -> bool:
    """Neither gradients nor a program are recorded, and nothing is transformed."""
    return not (torch.is_grad_enabled() or plain())


def add_scaled(x: Tensor, scale: Tensor, y: Tensor) -> Tensor:
    """x + scale * y, in one pass over the memory."""
    if records_nothing() and x.dtype == scale.dtype == y.dtype:
        return torch.addcmul(x, scale, y)
    return x + scale * y


def run_mlp(mlp: nn.Module, x: Tensor) -> Tensor:
    """``mlp(x)``, x (B, N, C), with GELU in place; on the CPU a large hidden layer some tokens at a
    time, so that it stays in the cache."""
    if not (records_nothing() and is_plain_mlp(mlp)):
        return mlp(x)
    parts = 1
    if x.device.type == 'cpu':
        parts = -(-x.shape[0] * x.shape[1] * mlp.fc1.out_features // HIDDEN)
    if parts <= 1:  # 0: no images
        return mlp.fc2(gelu_(mlp.fc1(x)))
    return torch.cat([mlp.fc2(gelu_(mlp.fc1(part))) for part in x.chunk(parts, 1)], 1)


def is_plain_mlp(mlp: nn.Module) -> bool:
    """timm's, of linear layers and exact GELU, without hooks, norm and active dropout."""
    return (type(mlp) is Mlp and not has_hooks(mlp) and is_plain_linear(mlp.fc1)
            and is_plain_linear(mlp.fc2) and is_gelu(mlp.act)
            and isinstance(mlp.norm, nn.Identity)
            and all(not drop.training or drop.p == 0 for drop in (mlp.drop1, mlp.drop2)))


def is_gelu(layer: nn.Module) -> bool:
    return type(layer) is nn.GELU and layer.approximate == 'none' and not has_hooks(layer)


def gelu_(x: Tensor) -> Tensor:
    """GELU in place, which ``torch.nn.functional`` does not offer."""
    return torch.ops.aten.gelu_(x)


def is_conv_norm(layer: nn.Module) -> bool:
    """A convolution without bias and a batch norm in evaluation, nobody looking in between."""
    return (type(layer) is nn.Sequential and len(layer) == 2 and type(layer[0]) is nn.Conv2d
            and layer[0].bias is None and layer[0].padding_mode == 'zeros'
            and type(layer[1]) in (nn.BatchNorm2d, nn.SyncBatchNorm)
            and layer[1].affine and layer[1].track_running_stats
            and not layer[1].training and not any(map(has_hooks, (layer, *layer))))


def conv_norm(layer: nn.Sequential, x: Tensor) -> Tensor:
    """``layer(x)`` of ``is_conv_norm`` with the norm's scale in the weights of the convolution."""
    conv, norm = layer
    dtype = torch.promote_types(conv.weight.dtype, torch.float32)
    scale = norm.weight.to(dtype) * (norm.running_var.to(dtype) + norm.eps).rsqrt()
    bias = norm.bias.to(dtype) - norm.running_mean.to(dtype) * scale
    weight = conv.weight.to(dtype) * scale[:, None, None, None]
    return F.conv2d(x, weight.to(conv.weight.dtype), bias.to(conv.weight.dtype), conv.stride,
                    conv.padding, conv.dilation, conv.groups)
