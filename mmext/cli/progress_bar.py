"""A progress bar in a terminal; nothing where the output goes to a file or a pipe."""

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator


def _bar():
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    return Progress(
        TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn('ETA'), TimeRemainingColumn(), console=Console(stderr=True),
        redirect_stdout=sys.stdout.isatty())


@contextlib.contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar with ETA on stderr; gives a function that says that one more is done.

    Lines printed meanwhile appear above the bar.
    """
    if not sys.stderr.isatty():
        yield lambda: None
        return
    with _bar() as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


@contextlib.contextmanager
def training_progress(runner) -> Iterator[None]:
    """A bar with ETA under the log lines of the training that runs inside, and of validations."""
    from mmengine.dist import is_main_process
    from mmengine.hooks import Hook
    if not (sys.stderr.isatty() and is_main_process()):
        yield
        return
    bar = _bar()

    class BarHook(Hook):
        priority = 'LOWEST'

        def before_train(self, runner):
            self.training = bar.add_task(
                'training', total=runner.max_iters, completed=runner.iter)

        def after_train_iter(self, runner, *args, **kwargs):
            bar.update(self.training, completed=runner.iter + 1)

        def before_val_epoch(self, runner):
            self.validation = bar.add_task('validation', total=len(runner.val_dataloader))

        def after_val_iter(self, runner, *args, **kwargs):
            bar.advance(self.validation)

        def after_val_epoch(self, runner, *args, **kwargs):
            bar.remove_task(self.validation)

    runner.register_hook(BarHook())
    with bar:
        # the log's lines go through the bar, too: it moves out of their way
        moved = [(handler, handler.setStream(sys.stdout)) for handler in runner.logger.handlers
                 if type(handler) is logging.StreamHandler]
        try:
            yield
        finally:
            for handler, stream in moved:
                if stream is not None:
                    handler.setStream(stream)
