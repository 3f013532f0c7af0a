"""Files that a tool writes: none over an input, over what is there, or over each other.

Imports nothing but the standard library: outputs are looked at before anything is read.
"""

import functools
from collections.abc import Iterable
from pathlib import Path

from .clear_errors import ConfigError


def check_outputs(outputs: Iterable[str | Path | None], overwrite: bool,
                  inputs: Iterable[str | Path | None] = ()) -> None:
    """Raise :class:`ConfigError` where writing would destroy something.

    Args:
        outputs: files to be written; None is passed over.
        overwrite: whether the user allowed to replace outputs. Inputs are never replaced.
    """
    read, seen = {Path(path).resolve() for path in inputs if path}, set()
    for path in map(Path, filter(None, outputs)):
        if path.resolve() in seen:
            raise ConfigError(f'{path} would be written twice: give two files.')
        seen.add(path.resolve())
        if path.resolve() in read:
            raise ConfigError(f'{path} is an input of this command: give another file to write.')
        if path.is_dir():
            raise ConfigError(f'{path} is a folder: give a file to write.')
        if path.exists() and not overwrite:
            raise ConfigError(f'{path} exists; --overwrite replaces it.')


def check_folder(folder: str | Path | None, overwrite: bool) -> None:
    """The same for a folder of files whose names are not known beforehand."""
    if folder and not overwrite and Path(folder).is_dir() and any(Path(folder).iterdir()):
        raise ConfigError(f'{folder} holds files; --overwrite replaces those named alike.')


class Names:
    """Distinct names for what is written about files that may be named alike.

    a.jpg, a.png, other/a.png -> a, a_png, other_a_png; then numbers. Letters that differ in case
    alone count as alike, as they do on many file systems.
    """

    def __init__(self):
        self.taken = set()

    def __call__(self, path: str | Path) -> str:
        path = Path(path)
        suffix = path.suffix[1:]
        wishes = [path.stem, f'{path.stem}_{suffix}', f'{path.parent.name}_{path.stem}_{suffix}']
        number = 2
        while wishes[0].casefold() in self.taken:
            wishes.pop(0)
            if not wishes:
                wishes, number = [f'{path.stem}_{number}'], number + 1
        self.taken.add(wishes[0].casefold())
        return wishes[0]


def keep_drawings_apart(visualizer) -> None:
    """Let the visualizer of mmdet or mmpretrain write images of one name to files of two names.

    Their hooks name a drawing by the image's name without its folder.
    """
    names = Names()

    def apart(draw):
        @functools.wraps(draw)
        def drawn(*args, out_file=None, **kwargs):
            if out_file is not None:
                out_file = str(Path(out_file).with_name(names(out_file) + Path(out_file).suffix))
            return draw(*args, out_file=out_file, **kwargs)
        return drawn

    for method in ('add_datasample', 'visualize_cls'):
        if hasattr(visualizer, method):
            setattr(visualizer, method, apart(getattr(visualizer, method)))
