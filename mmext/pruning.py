"""Bias-pruned attention for timm's vision transformers as they are.

Source: "Exploiting Biases in Attention for Transformers" (2026). ``mmext.calibration`` gives the
new bias a start.
"""

import functools
from collections.abc import Mapping, Sequence

from torch import nn

from mmext.layers.biased_attention import BiasedAttention
from mmext.layers.timm_attention import TIMM_ATTENTION, adopt, release
from mmext.ops.column_selection import keep_rules

# A new bias ranks columns at random, but is too small to change what attention computes; it also
# survives fp16, whose smallest step is 6e-8.
STD = 1e-7
PREFIX_NAMES = ('cls_token', 'dist_token', 'reg_token', 'register_tokens')


class Pruning:
    """What ``prune_attention`` did to a model.

    Attributes:
        model: the model, changed in place.
        layers: its bias-pruned attention modules, first to last.
    """

    def __init__(self, model: nn.Module, layers: list[BiasedAttention]):
        self.model = model
        self.layers = layers

    def set_keep_ratio(self, value: float | Sequence | Mapping | None, train: bool = True,
                       val: bool = True) -> None:
        """See ``mmext.pruning.set_keep_ratio``."""
        set_keep_ratio(self.model, value, train, val)

    def __repr__(self) -> str:
        rules = [layer.rule_val.ratio for layer in self.layers]
        kept = ', '.join('all' if ratio is None else f'{ratio:.3g}' for ratio in rules)
        return (f'Pruning of {type(self.model).__name__}: {len(self.layers)} attention layers, '
                f'columns kept in validation: {kept or "undone"}')

    def undo(self) -> nn.Module:
        """Give the model its own attention back; the key bias is gone. Returns the model."""
        for layer in self.layers:
            release(layer)
        vars(self.model).pop('set_keep_ratio', None)
        self.layers = []
        return self.model


def prune_attention(model: nn.Module, keep_ratio: float | Sequence | Mapping | None = (0.9, 0.1),
                    keep_prefix: bool = True, train_mode: str = 'mask', val_mode: str = 'gather',
                    gather: str = 'auto') -> Pruning:
    """Turn a ViT of timm's family into a bias-pruned one, in place and with its weights.

    Works for every model built of timm's ``Attention`` (ViT, DeiT, MAE, DINO, CLIP and SigLIP
    towers, with registers, distillation token, ``qk_norm``, layer scale), its rotary relatives
    (EVA, DINOv3), BEiT and Segment Anything (its global blocks). New is one parameter a layer,
    ``...attn.key_bias.weight`` (H, C); it starts with values that rank the columns at random and
    change the dense output by rounding only: train it, or give it a start with
    ``mmext.calibrate_bias``.

    Args:
        model: the model or a module that contains one, such as a classifier around a backbone.
        keep_ratio: what is kept: None (all columns), a number, (r0, r1) for the linear schedule
            over depth, a dict for another shape, or one entry a layer; see
            ``keep_ratio_schedule``. Changed later by ``model.set_keep_ratio``.
        keep_prefix: class token, distillation token and registers are always kept, within k.
        train_mode, val_mode, gather: see ``mmext.layers.BiasedAttention``.

    Returns:
        A handle with ``layers``, ``set_keep_ratio`` and ``undo``.

    Raises:
        ValueError: the model has no such attention, is pruned already, or ``keep_ratio`` is wrong;
            the model is then unchanged.
    """
    if any(isinstance(module, BiasedAttention) for module in model.modules()):
        raise ValueError(f'{type(model).__name__} has bias-pruned attention already: change it '
                         'with set_keep_ratio')
    found = global_attention(model)
    if not found:
        others = sorted({type(module).__name__ for module in model.modules()
                         if 'attention' in type(module).__name__.lower()
                         or 'attn' in type(module).__name__.lower()
                         or type(module).__name__ == 'XCA'})
        raise ValueError(
            f'{type(model).__name__} has no attention that can be pruned (it has '
            f'{", ".join(others) or "no attention at all"}); supported are '
            + ', '.join(f'{cls.__module__}.{cls.__name__}' for cls in TIMM_ATTENTION))
    keep_rules(keep_ratio, None, len(found))  # refused before anything changes
    options = dict(train_mode=train_mode, val_mode=val_mode, gather=gather,
                   keep_prefix=keep_prefix, num_prefix_tokens=num_prefix_tokens(model))
    BiasedAttention(1, 1, **options)
    layers = [adopt(module, STD, **options) for module in found]
    set_keep_ratio(model, keep_ratio)
    if not hasattr(model, 'set_keep_ratio'):
        # a partial, unlike a method, follows deepcopy and pickle
        model.set_keep_ratio = functools.partial(set_keep_ratio, model)
    return Pruning(model, layers)


def global_attention(model: nn.Module) -> list[nn.Module]:
    """The attention modules that can be pruned, first to last; those of windows are left dense."""
    windowed = {id(block.attn) for block in model.modules()
                if getattr(block, 'window_size', 0) and hasattr(block, 'attn')}
    return [module for module in model.modules()
            if type(module) in TIMM_ATTENTION and id(module) not in windowed]


def num_prefix_tokens(model: nn.Module) -> int:
    """Tokens in front of the patches: what the outermost module says that says so, else the number
    of its class, distillation and register tokens."""
    for module in model.modules():
        if type(module) in TIMM_ATTENTION:
            continue  # rotary ones know of what is not rotated
        if hasattr(module, 'num_prefix_tokens'):
            return module.num_prefix_tokens
        tokens = [getattr(module, name, None) for name in PREFIX_NAMES]
        if hasattr(module, 'pos_embed') or any(token is not None for token in tokens):
            return sum(token.shape[1] for token in tokens if token is not None)
    return 0


def pruned_layers(model: nn.Module) -> list[BiasedAttention]:
    """The bias-pruned attention modules of a model, first to last."""
    return [module for module in model.modules() if isinstance(module, BiasedAttention)]


def set_keep_ratio(model: nn.Module, value: float | Sequence | Mapping | None,
                   train: bool = True, val: bool = True) -> None:
    """Change what a pruned model keeps.

    Args:
        value: in any form of ``prune_attention``'s ``keep_ratio``; None is dense.
        train, val: for which of the two modes.
    """
    layers = pruned_layers(model)
    for layer, rule in zip(layers, keep_rules(value, None, len(layers)), strict=True):
        layer.set_rule(rule, train, val)
