"""Training a named part of a model, with everything else frozen."""

from mmengine.logging import print_log
from mmengine.optim import OptimWrapper
from torch import nn

from mmext.engine.layer_decay_constructor import LayerDecayOptimWrapperConstructor
from mmext.registry import OPTIM_WRAPPER_CONSTRUCTORS


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class TrainOnlyOptimWrapperConstructor(LayerDecayOptimWrapperConstructor):
    """Freezes all parameters but those whose name contains one of ``train_only``.

    The freezing happens when the optimizer is built, after the model was wrapped for distributed
    training: such configs need ``find_unused_parameters = True``.

    Args:
        optim_wrapper_cfg: as everywhere in mmengine.
        paramwise_cfg: ``train_only`` (list of substrings, e.g. ``['.attn.']``) and the options
            of :class:`LayerDecayOptimWrapperConstructor`.

    Raises:
        ValueError: ``train_only`` is missing, or one of its entries matches no parameter.
    """

    def __init__(self, optim_wrapper_cfg: dict, paramwise_cfg: dict | None = None):
        paramwise_cfg = dict(paramwise_cfg or {})
        self.train_only = paramwise_cfg.pop('train_only', None)
        if isinstance(self.train_only, str) or not self.train_only:
            raise ValueError(f'paramwise_cfg.train_only={self.train_only!r} must be a list of '
                             "parts of parameter names, e.g. ['.attn.']")
        super().__init__(optim_wrapper_cfg, paramwise_cfg)

    def __call__(self, model: nn.Module) -> OptimWrapper:
        names = [name for name, _ in model.named_parameters()]
        for part in self.train_only:
            if not any(part in name for name in names):
                raise ValueError(f'train_only: no parameter name contains {part!r}; names look '
                                 f'like {names[len(names) // 2]!r}')
        trained = 0
        for name, param in model.named_parameters():
            if any(part in name for part in self.train_only):
                trained += param.requires_grad * param.numel()
            else:
                param.requires_grad_(False)
        total = sum(param.numel() for param in model.parameters())
        print_log(f'training {trained:,} of {total:,} parameters: those named {self.train_only}',
                  logger='current')
        return super().__call__(model)
