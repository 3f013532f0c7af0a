"""What the attention layers share: timm's constructor and call, heads, plain projections."""

import torch
from torch import Tensor, nn

from mmext.ops.autograd import transformed


def check_heads(dim: int, num_heads: int, name: str) -> None:
    if num_heads < 1 or dim % num_heads:
        raise ValueError(f'{name}: dim={dim} must be divisible by num_heads={num_heads}')


def refuse(layer: nn.Module, **options) -> None:
    """ValueError naming every option of timm's constructor or call that ``layer`` cannot honor.

    None and False mean that nothing was asked for.
    """
    given = [name for name, value in options.items() if value is not None and value is not False]
    if given:
        raise ValueError(f'{type(layer).__name__} does not support {", ".join(given)}')


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(B, N, H*P) -> (B, H, N, P), a view."""
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, H, N, P) -> (B, N, H*P)."""
    return x.transpose(1, 2).flatten(2)


def is_plain_linear(layer: nn.Module) -> bool:
    """Whether reading ``weight`` and ``bias`` gives what a call would.

    Not so for adapters (LoRA), quantized layers, parametrizations and hooked layers: they are
    called. A subclass counts as another layer.
    """
    return type(layer) is nn.Linear and not has_hooks(layer)


def has_hooks(layer: nn.Module) -> bool:
    return any((layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks,
                layer._backward_pre_hooks))


def drop_factors(dropout: nn.Dropout, v: Tensor) -> Tensor | None:
    """Dropout factors (B, H, P) for the statistics of v (B, H, N, P); None where it is off."""
    if not dropout.training or dropout.p == 0:
        return None
    return dropout(torch.ones_like(v[:, :, 0], dtype=torch.promote_types(v.dtype, torch.float32)))


def may_overwrite(projection: nn.Module) -> bool:
    """True when nobody but the layer itself sees the output of its projection."""
    return is_plain_linear(projection) and not torch.is_grad_enabled() and not transformed()
