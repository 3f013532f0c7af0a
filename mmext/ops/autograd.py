"""Where the hand-written backward passes of this folder step aside for torch's own."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def transformed() -> bool:
    """Whether ``torch.jit.trace`` records or a transform of ``torch.func`` (grad, vmap, jvp) runs.

    Neither knows hand-written backward passes, ``out=`` or sizes that depend on values.
    """
    return not torch.compiler.is_compiling() and (
        torch.jit.is_tracing() or torch._C._are_functorch_transforms_active())


def own_backward(*inputs: Tensor) -> bool:
    """Whether the hand-written backward pass of a function of these inputs is to be recorded."""
    return (torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
            and not transformed())


def plain() -> bool:
    """Whether plain out-of-place expressions are asked for: by compilers, exporters, transforms."""
    return torch.compiler.is_compiling() or transformed()


def differentiated_again() -> bool:
    """In a backward pass: whether its result will be differentiated (``create_graph=True``)."""
    return torch.is_grad_enabled() and not torch.compiler.is_compiling()


def gradients(function: Callable[..., Tensor], inputs: Sequence, grad: Tensor) -> tuple:
    """Gradients of ``function(*inputs)`` by torch's own backward, with a graph of their own.

    Args:
        function: the differentiable twin of a hand-written forward pass.
        inputs: what it takes; tensors that require no gradient, and others, get None.
        grad: of its result.
    """
    wanted = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
    found = iter(torch.autograd.grad(function(*inputs), wanted, grad, create_graph=True))
    return tuple(next(found) if isinstance(x, Tensor) and x.requires_grad else None
                 for x in inputs)
