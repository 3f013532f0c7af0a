"""mmext: linear white-box and bias-pruned attention for MMDetection and MMPretrain.

Importing the package is cheap: it imports neither torch nor any OpenMMLab package.
"""

__version__ = '0.1.0'

_LAZY = {'prune_attention': 'mmext.pruning', 'calibrate_bias': 'mmext.calibration',
         'recover': 'mmext.recovery', 'choose_keep_ratio': 'mmext.recovery',
         'load': 'mmext.cli.predictor'}


def __getattr__(name):
    """``mmext.prune_attention`` and the like, imported when first used."""
    if name not in _LAZY:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    import importlib
    return getattr(importlib.import_module(_LAZY[name]), name)
