"""The one place that knows about the versions and gaps of other packages.

:func:`setup` runs when ``mmext.registry`` is imported. In own scripts that import mmdet or
mmpretrain first, call it before them: ``import mmext.compat; mmext.compat.setup()``.
"""

_done = False


def setup() -> None:
    """Prepare the process for mmdet and mmpretrain; a second call does nothing.

    Checks the installed versions, stands in for mmcv's compiled ops where they are absent, lets
    mmengine read the checkpoints that it wrote and find mmext's configs by name, lets the
    inferencers of both packages work in one process, and repairs mmdet's panoptic pictures.

    Raises:
        ImportError: An unsupported version, or a mixture of the two OpenMMLab families.
    """
    global _done
    if _done:
        return
    from . import hub, inferencers, mmcv_ext, panoptic, torch_load, versions
    versions.check()
    mmcv_ext.install()
    torch_load.allow_own_checkpoints()
    hub.add_package()
    inferencers.keep_scopes()
    panoptic.repair_when_imported()
    versions.avoid_broken_transformers()
    _done = True
