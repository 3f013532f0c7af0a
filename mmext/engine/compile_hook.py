"""torch.compile of the part of a model that is worth it."""

from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper

from mmext.registry import HOOKS


@HOOKS.register_module()
class CompileBackboneHook(Hook):
    """Compiles the backbone, in place and for training and evaluation.

    mmengine's own ``compile`` setting compiles the whole training step with the optimizer in it,
    which today's PyTorch refuses, and the heads of a detector, whose shapes change all the time.
    Names in checkpoints do not change.

    Args:
        kwargs: of ``torch.compile``, such as ``backend``, ``mode`` and ``dynamic``.
    """

    priority = 'VERY_LOW'

    def __init__(self, **kwargs):
        self.kwargs = kwargs

    def before_run(self, runner) -> None:
        model = runner.model
        model = model.module if is_model_wrapper(model) else model
        model.backbone.compile(**self.kwargs)
        runner.logger.info(f'compiling {type(model.backbone).__name__} at its first use')
