"""Messages of other packages that say nothing about a run, silenced where they are made."""

import builtins
import functools
import logging
import re
import warnings

# records of mmengine's logger about its own inner calls
HARMLESS = re.compile(
    r'"FileClient" will be deprecated|"HardDiskBackend" is the alias of|'
    # a root registry without a child of this scope: mmengine then takes what it was asked to
    r'Failed to search registry with scope "(mmext|mmdet|mmpretrain)"')
COCO_LINES = ('loading annotations into memory', 'Done (t=', 'creating index', 'index created!')


def silence_imports() -> None:
    """Hide what mmdet and mmpretrain print while they are imported.

    They hand debug messages (an optional package is absent) to ``print_log``, which without a
    logger prints whatever the level.
    """
    import mmengine.logging as package
    original = package.print_log

    @functools.wraps(original)
    def print_log(msg, logger=None, level=logging.INFO) -> None:
        if logger is not None or level >= logging.INFO:
            original(msg, logger, level)

    package.print_log = print_log
    warnings.filterwarnings('ignore', message='faster_coco_eval is not installed')


def silence_coco() -> None:
    """Hide the four lines that pycocotools prints whenever it opens an annotation file."""
    import pycocotools.coco as module

    def print(*values, **options):
        if not str(values[0] if values else '').startswith(COCO_LINES):
            builtins.print(*values, **options)

    module.print = print
