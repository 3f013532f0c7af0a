"""Paths that come out of files: they stay below the folder that they are relative to."""

import os.path as osp
from pathlib import Path, PurePosixPath, PureWindowsPath


def outside(name: str) -> bool:
    """Whether a path of a file leaves its folder: absolute, or upwards, on any system."""
    windows = PureWindowsPath(name)
    return (PurePosixPath(name).is_absolute() or bool(windows.drive or windows.root)
            or '..' in windows.parts or '\0' in name)


def below(root: Path, name: str, follow: bool = False) -> Path:
    """``root / name``.

    Args:
        root: the folder.
        name: a relative path out of a file.
        follow: also refuse a symbolic link on the way that leads out of the folder; for what is
            written.

    Raises:
        ValueError: the path leaves the folder.
    """
    path = Path(root) / name
    if outside(name) or (follow and not Path(osp.realpath(path)).is_relative_to(
            osp.realpath(root))):
        raise ValueError(f'{name!r} leads out of {str(root)!r}; write it relative to the folder'
                         if outside(name) else
                         f'{name!r} is a link that leads out of {str(root)!r}; remove it')
    return path
