"""Files that travel with the package: configs, tools, the model index and trained weights.

Imports neither torch nor any OpenMMLab package.
"""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
# name for `--model` and `mmext.load`: config (its stem is that of the weights in mmext/zoo)
TRAINED = {
    'digits': 'quickstart/digits_mask_rcnn.py',
    'digits-cls': 'quickstart/digits_cls.py',
}


def shipped(name: str) -> Path:
    """A file or folder of the wheel's ``mmext/.mim``, else that of the checkout.

    Args:
        name: 'configs', 'tools' or 'model-index.yml', or a path below one of them.

    Raises:
        FileNotFoundError: neither place has it.
    """
    outside = 'configs/model-index.yml' if name == 'model-index.yml' else name
    for path in (PACKAGE / '.mim' / name, PACKAGE.parent / outside):
        if path.exists():
            return path
    raise FileNotFoundError(f'{name} is neither in {PACKAGE / ".mim"} nor beside {PACKAGE}: '
                            'install mmext again')


def trained_model(name: str) -> tuple[str, str]:
    """Paths of the config and of the weights of a model that the package holds.

    Raises:
        ValueError: there is no such model; the message names those there are.
    """
    if name not in TRAINED:
        raise ValueError(f'no model {name!r} travels with mmext; there are '
                         f'{", ".join(map(repr, TRAINED))}. For others give config and checkpoint.')
    weights = sorted((PACKAGE / 'zoo').glob(f'{Path(TRAINED[name]).stem}-*.pth'))
    if len(weights) != 1:
        raise FileNotFoundError(f'{PACKAGE / "zoo"} holds {len(weights)} files of weights of '
                                f'{name!r} instead of one: install mmext again')
    return str(shipped(f'configs/{TRAINED[name]}')), str(weights[0])
