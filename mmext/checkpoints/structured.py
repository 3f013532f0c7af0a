"""Structured pruning of a plain DeiT with Torch-Pruning: the baseline that bias pruning is held
against. Sources: Torch-Pruning / DepGraph (arXiv 2301.12900), isomorphic ranking (arXiv
2407.04616); importance is the group L2 magnitude of its GroupMagnitudeImportance.

Whole channels disappear: of the embedding, of the MLP's hidden layer, and either of every head
('heads-kept') or as whole heads ('heads-pruned'). The result is a smaller dense network.
"""

import math
from typing import Literal

import timm
import torch
from torch import nn

from mmext.checkpoints.safe_reader import read_checkpoint
from mmext.ops.position_grid import resize_position_grid

VARIANTS = ('heads-kept', 'heads-pruned')


def import_torch_pruning():
    try:
        import torch_pruning
    except ImportError as error:
        raise ImportError('structured pruning needs the package torch-pruning: '
                          'pip install torch-pruning') from error
    return torch_pruning


def prune_vit(model: nn.Module,
              variant: Literal['heads-kept', 'heads-pruned'] = 'heads-kept',
              ratio: float = 0.3,
              head_ratio: float = 0.3,
              round_to: int | None = None) -> list[int]:
    """Prune a timm VisionTransformer in place, by magnitude, ranked over all layers of a kind.

    Args:
        model: with its trained weights; its classifier keeps all outputs.
        variant: 'heads-kept' narrows the heads, equally within a layer; 'heads-pruned' removes
            whole heads.
        ratio: share of the channels that goes, of the embedding, the MLP and ('heads-kept') the
            heads, in (0, 1).
        head_ratio: share of all heads that goes, for 'heads-pruned'. The paper does not name it:
            our choice.
        round_to: channel counts become multiples of this.

    Returns:
        heads of every block.

    Raises:
        ImportError: torch-pruning is not installed.
        ValueError: an unknown variant, or a ratio outside (0, 1).
    """
    if variant not in VARIANTS:
        raise ValueError(f'variant={variant!r} is unknown; choose one of {VARIANTS}')
    for name, value in (('ratio', ratio), ('head_ratio', head_ratio)):
        if not 0 < value < 1:
            raise ValueError(f'{name}={value} must lie between 0 and 1')
    tp = import_torch_pruning()
    prune_heads = variant == 'heads-pruned'
    attentions = [block.attn for block in model.blocks]
    fused = [attention.fused_attn for attention in attentions]
    for attention in attentions:
        attention.fused_attn = False  # the graph is read from autograd's explicit operators
    weight = model.patch_embed.proj.weight
    pruner = tp.pruner.BasePruner(
        model,
        torch.rand(1, 3, *model.patch_embed.img_size, device=weight.device),
        importance=tp.importance.GroupMagnitudeImportance(p=2),
        global_pruning=True,
        isomorphic=True,
        pruning_ratio=ratio,
        ignored_layers=[model.head],
        unwrapped_parameters=[(model.cls_token, 2), (model.pos_embed, 2)],
        num_heads={attention.qkv: attention.num_heads for attention in attentions},
        prune_num_heads=prune_heads,
        prune_head_dims=not prune_heads,
        head_pruning_ratio=head_ratio if prune_heads else 0.0,
        round_to=round_to)
    pruner.step()
    heads = [int(pruner.num_heads[attention.qkv]) for attention in attentions]
    for attention, was_fused in zip(attentions, fused, strict=True):
        attention.fused_attn = was_fused
    adopt_shapes(model, heads)
    return heads


def adopt_shapes(model: nn.Module, heads: list[int]) -> None:
    """Make a VisionTransformer's own bookkeeping follow the shapes of its parameters."""
    for block, num_heads in zip(model.blocks, heads, strict=True):
        attention = block.attn
        attention.num_heads = num_heads
        attention.attn_dim = attention.qkv.out_features // 3
        attention.head_dim = attention.attn_dim // num_heads
        attention.scale = attention.head_dim**-0.5
    dim = model.pos_embed.shape[-1]
    model.embed_dim = model.num_features = model.head_hidden_size = dim
    model.patch_embed.embed_dim = dim


def save_pruned(path, model: nn.Module, arch: str, heads: list[int]) -> None:
    """Write weights and what :func:`load_pruned` needs to rebuild the model."""
    torch.save({'model': model.state_dict(), 'arch': arch, 'num_heads': heads}, path)


def load_pruned(path, **kwargs) -> nn.Module:
    """The timm VisionTransformer that :func:`save_pruned` wrote, in training mode.

    Args:
        kwargs: further options of ``timm.create_model``; for an ``img_size`` other than the file's
            the positions are resized (bicubic), as elsewhere.

    Raises:
        ValueError: the file was not written by ``save_pruned``, or cannot be read without
            executing code in it.
    """
    content = read_checkpoint(path)
    if not isinstance(content, dict) or not {'model', 'arch', 'num_heads'} <= set(content):
        raise ValueError(f'{path} holds no structurally pruned model; write one with '
                         'tools/analysis_tools/structured_pruning.py')
    state = content['model']
    num_classes = state['head.weight'].shape[0] if 'head.weight' in state else 0
    model = timm.create_model(content['arch'], num_classes=num_classes, **kwargs)
    count = model.num_prefix_tokens
    old = math.isqrt(state['pos_embed'].shape[1] - count)
    if (old, old) != tuple(model.patch_embed.grid_size):
        state = state | {'pos_embed': resize_position_grid(
            state['pos_embed'], (old, old), tuple(model.patch_embed.grid_size), count)}
    resize_parameters(model, state)
    adopt_shapes(model, content['num_heads'])
    model.load_state_dict(state)
    return model


def resize_parameters(model: nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Give every parameter the shape it has in ``state``."""
    for name, module in model.named_modules():
        for leaf, parameter in list(module.named_parameters(recurse=False)):
            shape = state[f'{name}.{leaf}' if name else leaf].shape
            if shape != parameter.shape:
                module.register_parameter(leaf, nn.Parameter(parameter.new_empty(shape)))
        if isinstance(module, nn.Linear):
            module.out_features, module.in_features = module.weight.shape
        elif isinstance(module, nn.Conv2d):
            module.out_channels = module.weight.shape[0]
        elif isinstance(module, nn.LayerNorm) and module.elementwise_affine:
            module.normalized_shape = tuple(module.weight.shape)
