"""Checkpoints of the ToST family: the official names are our own, so nothing is renamed.

Layouts: official (bare names, usually under ``model``, classifier ``head.``) and our classifier
(``backbone.`` before the same names).
"""

import re

from mmengine.logging import print_log
from torch import nn

from mmext.checkpoints.files import cut_prefix, read_state_dict
from mmext.checkpoints.vit import LoadReport

# What DMSA and the G1 gate add to a ToST or softmax-attention checkpoint
MAY_BE_NEW = re.compile(r'blocks\.\d+\.attn\.(membership|gate)\..*|'
                        r'blocks\.\d+\.attn\.shrink_lambda')
MAY_BE_DROPPED = re.compile(r'(head|data_preprocessor)\..*')
# The classification tail, which bodies for dense prediction do not have
TAIL = re.compile(r'cls_token|cls_attn_blocks\..*|norm\..*')


def load_tost(model: nn.Module, path: str, prefix: str = '') -> LoadReport:
    """Load an official or mmext file into a ``DMST``, by value, and log one line about it.

    Args:
        model: the body.
        path, prefix: see ``read_state_dict``; a lone ``backbone.`` is found without a prefix.

    Raises:
        ValueError: a parameter of the body is missing, other than memberships and gates; a name is
            left over, other than the head and a tail that this body does not have; or a shape
            differs.
    """
    state = read_state_dict(path, prefix)
    state = cut_prefix(state, 'backbone.') or state
    own = model.state_dict()
    loaded = [key for key in own if key in state]
    new = [key for key in own if key not in state]
    dropped = [key for key in state if key not in own]
    problems = {
        'parameters missing': [key for key in new if not MAY_BE_NEW.fullmatch(key)],
        'names left over': [
            key for key in dropped if not MAY_BE_DROPPED.fullmatch(key)
            and (model.has_tail or not TAIL.fullmatch(key)) and not _is_later_block(model, key)],
        'shapes that differ': [
            f'{key} {tuple(state[key].shape)} for {tuple(own[key].shape)}' for key in loaded
            if state[key].shape != own[key].shape],
    }
    if any(problems.values()):
        found = '; '.join(f'{len(names)} {what}: {", ".join(names[:4])}'
                          for what, names in problems.items() if names)
        raise ValueError(
            f'{path} does not fit this {type(model).__name__} with attn={model.attn!r} '
            f'({len(loaded)} of {len(own)} entries match). {found}')
    model.load_state_dict({key: state[key].to(own[key].dtype) for key in loaded}, strict=False)
    print_log(f'{path}: {len(loaded)} entries loaded, {len(new)} new, {len(dropped)} dropped '
              f'({", ".join(sorted({key.split(".")[0] for key in dropped})) or "none"})',
              logger='current')
    return LoadReport(loaded, new, dropped, [])


def _is_later_block(model: nn.Module, key: str) -> bool:
    """A block behind the last output, which the body does not build; the depth itself must fit."""
    index = re.match(r'blocks\.(\d+)\.', key)
    return bool(index) and len(model.blocks) <= int(index[1]) < model.depth
