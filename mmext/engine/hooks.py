"""Hooks that mmengine lacks."""

from mmengine.hooks import CheckpointHook

from mmext.registry import HOOKS


@HOOKS.register_module()
class SafeCheckpointHook(CheckpointHook):
    """mmengine's hook, which does not end a run because an evaluation lacks the ``save_best`` key.

    CocoMetric returns nothing at all, or nothing for one kind, while a young detector finds no
    object; mmengine's hook then raises KeyError and training is lost. Here such an evaluation is
    skipped with a warning. Arguments are those of ``CheckpointHook``.
    """

    def _save_best_checkpoint(self, runner, metrics: dict) -> None:
        if not self.save_best:
            return
        missing = [key for key in self.key_indicators if key != 'auto' and key not in metrics]
        if missing or not metrics:
            runner.logger.warning(
                f'this evaluation has no {missing or "metric"} (it has {sorted(metrics)}); the '
                'best checkpoint stays as it is')
        if metrics:
            # mmengine passes over a score of None
            super()._save_best_checkpoint(runner, {**dict.fromkeys(missing), **metrics})
