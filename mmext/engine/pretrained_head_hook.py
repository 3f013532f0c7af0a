"""The classifier weights of a published checkpoint, next to the backbone's own."""

import torch
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper

from mmext.checkpoints.files import read_state_dict
from mmext.checkpoints.vit import to_timm
from mmext.registry import HOOKS


@HOOKS.register_module()
class PretrainedHeadHook(Hook):
    """Copies ``head.weight`` and ``head.bias`` of a checkpoint into ``model.head.fc``.

    A backbone loads its part of a published file by ``init_cfg``; fine-tuning on the same classes
    wants the head as well. Runs once before training; does nothing in a run that is resumed or
    starts from ``load_from``.

    Args:
        checkpoint: file or URL in timm's, official DeiT / MAE, mmpretrain's or mmext's layout.

    Raises:
        ValueError: the file has no head, or one of another size.
    """

    priority = 'VERY_HIGH'

    def __init__(self, checkpoint: str):
        self.checkpoint = checkpoint

    def before_train(self, runner) -> None:
        if runner.iter > 0 or runner._load_from is not None:
            return
        model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        state = to_timm(read_state_dict(self.checkpoint))
        fc = model.head.fc
        for name, own in (('weight', fc.weight), ('bias', fc.bias)):
            value = state.get(f'head.{name}')
            if value is None:
                raise ValueError(f'{self.checkpoint} has no head.{name}; leave PretrainedHeadHook '
                                 'out to start from a new head')
            if value.shape != own.shape:
                raise ValueError(
                    f'head.{name} of {self.checkpoint} is {tuple(value.shape)}, the model has '
                    f'{tuple(own.shape)}; leave PretrainedHeadHook out for other classes')
            with torch.no_grad():
                own.copy_(value)
        runner.logger.info(f'head.fc: loaded from {self.checkpoint}')
