"""Loading by name and value: strict about all that is not allowed for, and one line about it."""

from collections.abc import Callable
from typing import NamedTuple

from mmengine.logging import print_log
from torch import Tensor, nn

from mmext.checkpoints.fit import DoesNotFit, some


class LoadReport(NamedTuple):
    """Names as in the model: loaded by value, new, dropped; resized with both sizes."""

    loaded: list[str]
    new: list[str]
    dropped: list[str]
    resized: list[str]


def load_by_name(model: nn.Module, state: dict[str, Tensor], path: str, what: str,
                 may_be_new: Callable[[str], object], may_be_dropped: Callable[[str], object],
                 ) -> LoadReport:
    """Copy ``state`` into ``model`` and log one line about it.

    Modules with a method ``fit_state_dict(state, prefix)`` bring entries to their own shapes first.

    Args:
        state: in the names of the model.
        path, what: what messages call the file and the model.
        may_be_new, may_be_dropped: whether a name may be missing in the file, may be left over.

    Raises:
        DoesNotFit: another name is missing or left over, or a shape differs; nothing is loaded.
    """
    own, state = model.state_dict(), dict(state)
    resized = fit_state_dict(model, state)
    loaded = [key for key in own if key in state]
    new = [key for key in own if key not in state]
    dropped = [key for key in state if key not in own]
    problems = [f'{len(names)} {fault}: {some(names)}' for fault, names in (
        ('parameters missing', [key for key in new if not may_be_new(key)]),
        ('names left over', [key for key in dropped if not may_be_dropped(key)]),
        ('shapes that differ', [f'{key} {tuple(state[key].shape)} for {tuple(own[key].shape)}'
                                for key in loaded if state[key].shape != own[key].shape]),
    ) if names]
    if problems:
        raise DoesNotFit(f'{path} does not fit this {what} ({len(loaded)} of {len(own)} '
                         f'entries match). {"; ".join(problems)}')
    model.load_state_dict({key: state[key].to(own[key].dtype) for key in loaded}, strict=False)
    print_log(
        f'{path}: {len(loaded)} entries loaded, {len(new)} new ({some(new)}), {len(dropped)} '
        f'dropped ({some(dropped)}), resized: {", ".join(resized) or "none"}', logger='current')
    return LoadReport(loaded, new, dropped, resized)


def fit_state_dict(model: nn.Module, state: dict[str, Tensor]) -> list[str]:
    """Let every module of ``model`` fit its entries of ``state``, in place; what was done."""
    done = []
    for name, module in model.named_modules():
        if hasattr(module, 'fit_state_dict'):
            done += module.fit_state_dict(state, f'{name}.' if name else '')
    return done
