"""Published files, which hold a backbone and a head by bare names, as our classifiers name them."""

import re

from torch import Tensor, nn

from mmext.checkpoints.vit import detect_layout, timm_to_mmext, to_timm

TOST = re.compile(r'blocks\.\d+\.(gamma1|attn\.(temp|to_out\.0\.weight))')


def own_names(state: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor] | None:
    """The names of a classifier of ours for a file of another layout, by the key maps of
    ``init_cfg``; positions are fitted by the backbone as it loads.

    Args:
        state: of a file of timm, DeiT, MAE, ToST or mmpretrain.
        model: what it is to be loaded into.

    Returns:
        the state under ``backbone.`` and ``head.fc.``; None where the file has our names already,
        or the model is no classifier on a backbone of ours.
    """
    if not (hasattr(model, 'head') and hasattr(getattr(model, 'backbone', None),
                                               'load_pretrained')):
        return None
    if any(key.startswith('backbone.blocks.') for key in state):
        return None
    if any(TOST.fullmatch(key) for key in state):
        return timm_to_mmext(state)
    try:
        detect_layout(state)
    except ValueError:
        return None  # of no network that we know: told by what holds it against the model
    return timm_to_mmext(to_timm(state))
