"""Loading by name and value: strict about all that is not allowed for, and one line about it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mmengine.logging import print_log
from torch import Tensor, nn

from mmext.checkpoints.fit import DoesNotFit, some


class LoadReport(NamedTuple):
    """Names, in the body's own spelling: loaded by value, new, dropped; resized with both sizes."""

    loaded: list[str]
    new: list[str]
    dropped: list[str]
    resized: list[str]


def load_by_name(model: nn.Module, state: dict[str, Tensor], path: str, body: str,
                 may_be_new: Callable[[str], object], may_be_dropped: Callable[[str], object],
                 resized: Sequence[str] = ()) -> LoadReport:
    """Copy ``state`` into ``model`` and log one line about it.

    Args:
        state: in the names of the model.
        path, body: what messages call the file and the model.
        may_be_new, may_be_dropped: whether a name may be missing in the file, may be left over.
        resized: what was resized before, in words.

    Raises:
        DoesNotFit: another name is missing or left over, or a shape differs; nothing is loaded.
    """
    own = model.state_dict()
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
        raise DoesNotFit(f'{path} does not fit this {body} ({len(loaded)} of {len(own)} '
                         f'entries match). {"; ".join(problems)}')
    model.load_state_dict({key: state[key].to(own[key].dtype) for key in loaded}, strict=False)
    print_log(
        f'{path}: {len(loaded)} entries loaded, {len(new)} new ({some(new)}), {len(dropped)} '
        f'dropped ({some(dropped)}), resized: {", ".join(resized) or "none"}', logger='current')
    return LoadReport(loaded, new, dropped, list(resized))
