"""A progress bar in a terminal; nothing where the output goes to a file or a pipe."""

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar with ETA on stderr; gives a function that says that one more is done.

    Lines printed meanwhile appear above the bar.
    """
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    bar = Progress(
        TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn('ETA'), TimeRemainingColumn(), console=Console(stderr=True),
        redirect_stdout=sys.stdout.isatty())
    with bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)
