"""Checkpoints of the ToST family: the official names are our own, so nothing is renamed.

Layouts: official (bare names, usually under ``model``, classifier ``head.``) and our classifier
(``backbone.`` before the same names).
"""

import re

from torch import nn

from mmext.checkpoints.files import cut_prefix, read_state_dict
from mmext.checkpoints.report import LoadReport, load_by_name

# What DMSA and the G1 gate add to a ToST or softmax-attention checkpoint
MAY_BE_NEW = re.compile(r'blocks\.\d+\.attn\.(membership|gate)\..*|'
                        r'blocks\.\d+\.attn\.shrink_lambda')
MAY_BE_DROPPED = re.compile(r'(head|data_preprocessor)\..*')
# The classification tail, which backbones for dense prediction do not have
TAIL = re.compile(r'cls_token|cls_attn_blocks\..*|norm\..*')


def load_tost(model: nn.Module, path: str, prefix: str = '') -> LoadReport:
    """Load an official or mmext file into a ``DMST``, by value, and log one line about it.

    Args:
        model: the backbone.
        path, prefix: see ``read_state_dict``; a lone ``backbone.`` is found without a prefix.

    Raises:
        ValueError: a parameter of the backbone is missing, other than memberships and gates; a
            name is left over, other than the head and a tail that this backbone does not have; or
            a shape differs.
    """
    state = read_state_dict(path, prefix)
    state = cut_prefix(state, 'backbone.') or state
    return load_by_name(
        model, state, path, f'{type(model).__name__} with attn={model.attn["type"]!r}',
        MAY_BE_NEW.fullmatch,
        lambda key: (MAY_BE_DROPPED.fullmatch(key) or _is_later_block(model, key)
                     or (not model.has_tail and TAIL.fullmatch(key))))


def _is_later_block(model: nn.Module, key: str) -> bool:
    """A block behind the last output, which is not built; the depth itself must fit."""
    index = re.match(r'blocks\.(\d+)\.', key)
    return bool(index) and len(model.blocks) <= int(index[1]) < model.depth
