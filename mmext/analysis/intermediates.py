"""A backbone's intermediates, a few layers at a time, so that N x N matrices never pile up."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mmext.models.backbones.base import resolve_indices

TOKEN_AXES = {
    'logits': (2, 3), 'attn': (2, 3), 'bias': (2,), 'kept': (2,), 'membership': (2,), 'gate': (2,),
    'v': (2,), 'x_in': (1,), 'x_out': (1,),
}


class Layer(NamedTuple):
    """One layer's intermediates for consecutive images of a batch.

    ``index`` of the block, ``first`` image, grid ``hw`` of the image's patch tokens (the last
    h * w tokens), ``tensors`` as the layer names them, all with batch axis first.
    """

    index: int
    first: int
    hw: tuple[int, int]
    tensors: dict[str, Tensor]


def analyzed_layers(backbone: nn.Module, layers: Sequence[int] | None = None) -> tuple[int, ...]:
    """Block indices in ascending order; None for all that attend to the whole image.

    Raises:
        ValueError: an index is out of range or belongs to a block with windows.
    """
    windowed = set(getattr(backbone, 'windowed', ()))
    chosen = sorted(set(resolve_indices(layers, backbone.depth)))
    if layers is None:
        chosen = [i for i in chosen if i not in windowed]
    elif windowed & set(chosen):
        raise ValueError(f'blocks {sorted(windowed & set(chosen))} attend within windows; choose '
                         f'among {sorted(set(range(backbone.depth)) - windowed)}')
    return tuple(chosen)


@torch.no_grad()
def iterate_layers(backbone: nn.Module, images: Tensor, layers: Sequence[int] | None = None,
                   budget: float = 2**30) -> Iterator[Layer]:
    """Run a backbone and yield its intermediates layer by layer.

    As many layers share one forward pass as fit into ``budget`` bytes, at least one. Where the
    model keeps padding out of its attention, padding is cut off here and images come one by one.

    Args:
        backbone: has ``forward_intermediates``; in eval mode.
        images: (B, 3 or 4, H, W) network input.
        layers: block indices, None for all; see ``analyzed_layers``.

    Raises:
        TypeError: the backbone gives no intermediates.
    """
    if not hasattr(backbone, 'forward_intermediates'):
        raise TypeError(f'backbone {type(backbone).__name__} gives no intermediates; the analyses '
                        "need one of mmext's, such as BiasPrunedViT or DMST")
    layers = analyzed_layers(backbone, layers)
    _, hw, valid = backbone.split_input(images)
    if not getattr(backbone, 'use_valid_mask', True):
        valid = None
    done, step = 0, 1
    while done < len(layers):
        found = backbone.forward_intermediates(images, layers[done:done + step])
        size = sum(t.nbytes for tensors in found.values() for t in tensors.values())
        done, step = done + step, max(1, int(budget // max(1, size / len(found))))
        while found:
            index = min(found)
            yield from _images(index, found.pop(index), hw, valid)


def _images(index, tensors, hw, valid) -> Iterator[Layer]:
    if valid is None or bool(valid.all()):
        yield Layer(index, 0, hw, tensors)
        return
    prefix = tensors['x_in'].shape[1] - valid.shape[1]
    for image, keep in enumerate(valid):
        grid = keep.view(hw)
        size = (int(grid.any(1).sum()), int(grid.any(0).sum()))
        keep = torch.cat([keep.new_ones(prefix), keep]).nonzero().squeeze(1)
        cropped = {}
        for name, tensor in tensors.items():
            tensor = tensor[image:image + 1]
            for axis in TOKEN_AXES.get(name, ()):
                tensor = tensor.index_select(axis, keep)
            cropped[name] = tensor
        yield Layer(index, image, size, cropped)

