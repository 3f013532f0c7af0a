"""The one place that knows about the versions and gaps of other packages.

:func:`setup` runs when ``mmext.registry`` is imported. In own scripts that import mmdet or
mmpretrain first, call it before them: ``import mmext.compat; mmext.compat.setup()``.
"""

import logging

_patched: list[str] = []


def setup() -> None:
    """Prepare the process for mmdet and mmpretrain; a second call does nothing.

    Checks the installed versions, stands in for mmcv's compiled ops where they are absent, lets
    mmengine read the checkpoints that it wrote and find mmext's configs by name, lets the
    inferencers of both packages work in one process, repairs mmdet's panoptic images and lvis, and
    hides messages about optional packages. One line to the logger ``mmext`` says what was changed,
    and :func:`patched` says it again.

    Raises:
        ImportError: An unsupported version, or a mixture of the two OpenMMLab families.
    """
    if _patched:
        return
    from . import hub, inferencers, lvis, messages, mmcv_ext, panoptic, torch_load, versions
    versions.check()
    messages.silence_imports()
    compiled = mmcv_ext.has_compiled_ops()
    mmcv_ext.install()
    torch_load.allow_own_checkpoints()
    hub.add_package()
    inferencers.keep_scopes()
    panoptic.repair_when_imported()
    lvis.repair_when_imported()
    left_out = versions.avoid_broken_transformers()
    _patched.extend([
        "mmcv's ops by " + ('its own kernels, by torchvision where these fall short' if compiled
                            else 'torchvision'),
        "mmengine's log history allowed in checkpoints",
        "mmext's configs found by name",
        "mmpretrain's inferencers in their own scope, a function registry for mmdet's",
        "mmdet's panoptic metric and images repaired, lvis with NumPy >= 1.24",
        *(["mmpretrain's multimodal models left out"] if left_out else []),
    ])
    logging.getLogger('mmext').info(patched())


def patched() -> str:
    """One line about what :func:`setup` changed in other packages."""
    return f'mmext set up: {"; ".join(_patched) or "nothing"}'
