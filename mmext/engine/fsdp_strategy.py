"""mmengine's FSDP strategy where it has fallen behind PyTorch."""

from mmengine._strategy import FSDPStrategy as MMEngineFSDPStrategy
from torch.distributed.fsdp import FullyShardedDataParallel

from mmext.compat.cpu import has_accelerator
from mmext.registry import STRATEGIES


@STRATEGIES.register_module()
class FSDPStrategy(MMEngineFSDPStrategy):
    """Sharded training that resumes with today's PyTorch, on GPUs and, for trying, on CPUs.

    Arguments are mmengine's. Whole checkpoints (``state_dict_cfg='full'``, the default here) have
    the names and shapes of any other run, so that ``tools/test.py`` and ``publish_model.py`` read
    them.
    """

    def __init__(self, *, state_dict_cfg: str | dict = 'full', **kwargs):
        super().__init__(state_dict_cfg=state_dict_cfg, **kwargs)
        if not has_accelerator():
            wrapper = self.model_wrapper or dict(type='MMFullyShardedDataParallel')
            self.model_wrapper = dict(wrapper, device_id='cpu')

    def optim_state_dict(self) -> dict:
        return FullyShardedDataParallel.optim_state_dict(self.model, self.optim_wrapper.optimizer)

    def load_optim_state_dict(self, state_dict: dict) -> None:
        self.optim_wrapper.optimizer.load_state_dict(
            FullyShardedDataParallel.optim_state_dict_to_load(
                model=self.model, optim=self.optim_wrapper.optimizer,
                optim_state_dict=state_dict))
