"""The pruning ratio of a model that prunes by a threshold, beside its accuracy."""

from mmengine.dist import all_reduce
from mmengine.hooks import Hook

from mmext.layers.pruning_ratio import PruningRatio
from mmext.registry import HOOKS


@HOOKS.register_module()
class PruningRatioHook(Hook):
    """Adds ``pruning_ratio`` in percent to the metrics of a test: the share of the key-value
    columns dropped, averaged over data, heads and layers.

    Does nothing where no layer has a threshold (``tau_val``): a keep ratio says by itself what it
    drops.
    """

    priority = 'NORMAL'  # before the loggers, which show the metrics

    def __init__(self):
        self.counter = None

    def before_test_epoch(self, runner) -> None:
        counter = PruningRatio(runner.model)
        if any(layer.rule_val.tau is not None for layer in counter.layers):
            self.counter = counter.__enter__()

    def after_test_epoch(self, runner, metrics: dict | None = None) -> None:
        if self.counter is None:
            return
        self.counter.__exit__()
        all_reduce(self.counter.total)  # of all processes
        layers = ', '.join(f'{100 * ratio:.2f}' for ratio in self.counter.of_layers)
        runner.logger.info(
            f'pruning ratio: {100 * self.counter.ratio:.2f} % of the key-value columns, mean over '
            f'images, heads and layers (layer by layer: {layers})')
        if metrics is not None:
            metrics['pruning_ratio'] = 100 * self.counter.ratio
        self.counter = None
