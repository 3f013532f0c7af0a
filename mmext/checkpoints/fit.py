"""Whether a checkpoint is of a model: names, shapes and buffers, held together in one place."""

import re
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

CURE = ('It is of another model, of another number of classes or in another layout. '
        'tools/model_converters/convert_vit.py turns timm, official and mmpretrain ViT files '
        "into mmext's.")


class DoesNotFit(ValueError):
    """A checkpoint is of another model; the message counts what differs."""


class Fit(NamedTuple):
    """Names of a model that a state dict gave, lacks, has too many of, or has in other shapes."""

    loaded: list[str]
    missing: list[str]
    unexpected: list[str]
    reshaped: list[str]

    @property
    def complete(self) -> bool:
        return not (self.missing or self.unexpected or self.reshaped)

    @property
    def differing(self) -> list[str]:
        return [*self.missing, *self.unexpected, *self.reshaped]

    def sentence(self, model: str = 'the model') -> str:
        total = len(self.loaded) + len(self.missing) + len(self.reshaped)
        parts = [f'{len(names)} {fault} ({some(names)})' for fault, names in (
            ('are missing', self.missing), ('have another shape', self.reshaped),
            ('are left over', self.unexpected)) if names]
        return '; '.join([f'{len(self.loaded)} of {total} entries of {model} match', *parts]) + '.'


def load_into(model: nn.Module, state: dict[str, Tensor]) -> Fit:
    """Copy what fits of ``state`` into ``model`` and say what did not.

    As ``load_state_dict``, through the modules' own hooks, so that what these adapt (positions of
    another grid) counts as fitting; but a shape that differs is reported, not raised. Counters of
    batch norm may be absent, as in old files.
    """
    missing, unexpected, errors = [], [], []

    def visit(module: nn.Module, part: dict[str, Tensor], prefix: str) -> None:
        module._load_from_state_dict(part, prefix, {}, True, missing, unexpected, errors)
        for name, child in module._modules.items():
            if child is not None:
                inner = f'{prefix}{name}.'
                visit(child, {k: v for k, v in part.items() if k.startswith(inner)}, inner)

    visit(model, OrderedDict(state), '')
    reshaped = [found[1] or found[2] for error in errors if (
        found := re.search(r'size mismatch for ([^:]+):|named "([^"]+)"', error))]
    absent = {*missing, *reshaped}
    loaded, missing = ([name for name in names if not name.endswith('num_batches_tracked')]
                       for names in (model.state_dict(), missing))
    loaded = [name for name in loaded if name not in absent]
    return Fit(loaded, missing, unexpected, reshaped)


def require(model: nn.Module, state: dict[str, Tensor], path: str,
            may_differ: Callable[[str], object] = lambda name: False) -> Fit:
    """:func:`load_into`, and an error where it does not fit.

    Args:
        path: what the message calls the file.
        may_differ: whether a name may be missing, left over or of another shape.

    Raises:
        DoesNotFit: another name differs, or nothing fits.
    """
    fit = load_into(model, state)
    wrong = [name for name in fit.differing if not may_differ(name)]
    if wrong or not fit.loaded:
        raise DoesNotFit(
            f'{path} does not fit: {fit.sentence(type(model).__name__)} {CURE}')
    return fit


def some(names: list[str], limit: int = 6) -> str:
    """Names, those that differ in a number as one, so that a line stays a line."""
    groups = {}
    for name in names:
        groups.setdefault(re.sub(r'\.\d+\.', '.*.', name), []).append(name)
    shown = [found[0] if len(found) == 1 else folded for folded, found in groups.items()]
    return ', '.join(shown[:limit]) + (', ...' if len(shown) > limit else '') or 'none'
