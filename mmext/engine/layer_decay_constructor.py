"""Parameter groups for classifiers and detectors: layer-wise rates, decay only where it belongs.

Sources: layer-wise decay of BEiT / MAE fine-tuning and ViTDet (arXiv:2203.16527); the rate of a
parameter is ``lr * rate^(L + 1 - id)`` with L blocks and id 0 for embeddings, i + 1 for block i
and L + 1 for everything after the blocks (neck, heads).
"""

from collections.abc import Iterator

from mmengine.logging import print_log
from mmengine.optim import DefaultOptimWrapperConstructor
from torch import nn

from mmext.registry import OPTIM_WRAPPER_CONSTRUCTORS


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class LayerDecayOptimWrapperConstructor(DefaultOptimWrapperConstructor):
    """Asks the backbone how deep each parameter is and which are not decayed; groups accordingly.

    The backbone's ``get_layer_depth(name, prefix)`` gives the depth. Not decayed is, as in timm's
    ``param_groups_weight_decay`` and so in DeiT and MAE: what has one axis (biases, norms of
    backbone, neck and heads, layer scale) and the names of its ``no_weight_decay()`` (positions,
    class token, ToST's ``temp``). The key bias is decayed like any weight: its paper follows DeiT's
    optimizer unchanged. In detectors the same rule holds; ViTDet decays biases too, so that part is
    our choice. Every trainable parameter is in exactly one group; frozen ones are in none. A group
    holds all parameters of one depth and one decay, and lists them as ``param_names``.

    Args:
        optim_wrapper_cfg: as everywhere in mmengine; the optimizer needs ``lr``.
        paramwise_cfg: only ``layer_decay_rate`` (0 < rate <= 1, default 1: equal rates).

    Raises:
        ValueError: for an unknown or impossible option, or when nothing can be trained.
        TypeError: when the rate is below 1 and the backbone has no ``get_layer_depth``.
    """

    def __init__(self, optim_wrapper_cfg: dict, paramwise_cfg: dict | None = None):
        # mmengine skips the grouping when paramwise_cfg is empty
        paramwise_cfg = {'layer_decay_rate': 1.0, **(paramwise_cfg or {})}
        super().__init__(optim_wrapper_cfg, paramwise_cfg)
        unknown = sorted(set(paramwise_cfg) - {'layer_decay_rate'})
        if unknown:
            raise ValueError(
                f'paramwise_cfg has {unknown}; {type(self).__name__} knows layer_decay_rate only '
                '(it decides by itself which parameters have no weight decay)')
        self.rate = paramwise_cfg['layer_decay_rate']
        if not 0 < self.rate <= 1:
            raise ValueError(f'layer_decay_rate={self.rate} must be above 0 and at most 1')
        if self.base_lr is None:
            raise ValueError(
                f'optimizer={self.optimizer_cfg} has no lr, from which every rate follows')

    def add_params(self, params: list[dict], module: nn.Module, **kwargs) -> None:
        """Appends the groups of the whole model ``module`` to ``params``."""
        groups, undecayed = {}, undecayed_names(module)
        for name, param, depth, num_layers in self.trainable(module):
            decays = param.ndim > 1 and name not in undecayed
            if (depth, decays) not in groups:
                scale = self.rate**(num_layers - 1 - depth)
                group = {
                    'params': [],
                    'param_names': [],
                    'lr': self.base_lr * scale,
                    'lr_scale': scale,
                    'layer_id': depth,
                }
                if not decays:
                    group['weight_decay'] = 0.0
                elif self.base_wd is not None:
                    group['weight_decay'] = self.base_wd
                groups[depth, decays] = group
            groups[depth, decays]['params'].append(param)
            groups[depth, decays]['param_names'].append(name)
        if not groups:
            raise ValueError(
                f'{type(module).__name__} has no trainable parameter: frozen_stages or '
                'requires_grad leaves nothing to optimize')
        for key in sorted(groups):
            params.append(groups[key])
            group = groups[key]
            print_log(
                f"layer {group['layer_id']}: lr {group['lr']:.3g}, weight decay "
                f"{group.get('weight_decay', 'default')}, {len(group['params'])} parameters",
                logger='current')

    def trainable(self, model: nn.Module) -> Iterator[tuple[str, nn.Parameter, int, int]]:
        """Name, parameter, layer id and number of layers of everything that is not frozen."""
        backbone, prefix = getattr(model, 'backbone', model), ''
        if backbone is not model:
            prefix = 'backbone.'
        if self.rate == 1:
            depth_of = equal_depth
        elif hasattr(backbone, 'get_layer_depth'):
            depth_of = backbone.get_layer_depth
        else:
            raise TypeError(
                f'layer_decay_rate={self.rate} needs a backbone with get_layer_depth(name, '
                f'prefix), which {type(backbone).__name__} has not; set layer_decay_rate=1 for '
                'equal rates')
        for name, param in model.named_parameters():
            if param.requires_grad:
                yield name, param, *depth_of(name, prefix)


def equal_depth(name: str, prefix: str = '') -> tuple[int, int]:
    """Layer depth of a model whose parameters all have the same rate."""
    return 0, 1


def undecayed_names(model: nn.Module) -> set[str]:
    """What the model, or the backbone in it, says of itself by ``no_weight_decay()``."""
    owner, prefix = (model.backbone, 'backbone.') if hasattr(model, 'backbone') else (model, '')
    if hasattr(owner, 'no_weight_decay'):
        names = owner.no_weight_decay()
    else:  # most of mmdet's and mmpretrain's do not answer: the convention of ViTs
        names = (name for name, _ in owner.named_parameters()
                 if name.split('.')[-1] in ('pos_embed', 'cls_token'))
    return {prefix + name for name in names}
