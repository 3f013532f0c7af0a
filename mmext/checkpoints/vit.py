"""Checkpoints of the ViT family: names, positions and a load that hides nothing.

Layouts, told apart by their names:
- 'timm': timm and the official DeiT and MAE files (there under ``model``), our own names;
- 'mmpretrain': its VisionTransformer with a head, or its backbone alone;
- 'mmext': our classifier, ``backbone.`` before timm's names, ``head.fc.`` for the head.
"""

import re

import torch
from torch import Tensor, nn

from mmext.checkpoints.files import cut_prefix, read_state_dict
from mmext.checkpoints.report import LoadReport, load_by_name
from mmext.ops.position_grid import resize_position_grid

LAYOUTS = ('timm', 'mmpretrain', 'mmext')
MMPRETRAIN_NAMES = (  # timm, mmpretrain
    ('patch_embed.proj.', 'patch_embed.projection.'),
    ('.norm1.', '.ln1.'),
    ('.norm2.', '.ln2.'),
    ('.mlp.fc1.', '.ffn.layers.0.0.'),
    ('.mlp.fc2.', '.ffn.layers.1.'),
)
HEADS = ('head.layers.head.', 'head.fc.', 'head.')  # of VisionTransformer and linear heads
# What a checkpoint may lack: parts that our backbone adds to the published ones, and the norm after
# pooling, which MAE's fine-tuning starts afresh.
MAY_BE_NEW = re.compile(
    r'blocks\.\d+\.attn\.(key_bias\.weight|rel_pos_[hw])|fc_norm\.(weight|bias)')
# What a backbone may leave out: heads, and what only pre-training or distillation uses.
MAY_BE_DROPPED = re.compile(
    r'((head|head_dist|data_preprocessor)\.|decoder_).*|dist_token|mask_token|pos_grid')


def detect_layout(state: dict[str, Tensor]) -> str:
    """One of LAYOUTS; ValueError when the names are of no ViT."""
    names = {re.sub(r'^backbone\.', '', key) for key in state}
    if 'patch_embed.projection.weight' in names or any(
            re.match(r'layers\.\d+\.ln1\.', name) for name in names):
        return 'mmpretrain'
    if not any(re.match(r'(blocks\.\d+\.|patch_embed\.)', name) for name in names):
        raise ValueError('not a ViT checkpoint: neither timm, official DeiT/MAE, mmpretrain nor '
                         f'mmext names in it, but {", ".join(sorted(state)[:4])}, ...')
    return 'mmext' if any(key.startswith('backbone.') for key in state) else 'timm'


def mmpretrain_to_timm(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """mmpretrain's VisionTransformer, with or without ``backbone.``, to timm's names."""
    out = {}
    for key, value in state.items():
        if key.startswith('head.'):
            key = key.replace('head.layers.head_dist.', 'head_dist.')
            head = next((head for head in HEADS if key.startswith(head)), None)
            out[key if head is None else 'head.' + key[len(head):]] = value
            continue
        key = key.removeprefix('backbone.')
        key = re.sub(r'^layers\.', 'blocks.', key)
        key = re.sub(r'^ln1\.', 'norm.', re.sub(r'^ln2\.', 'fc_norm.', key))
        for ours, theirs in MMPRETRAIN_NAMES:
            key = key.replace(theirs, ours)
        out[key] = value
    return out


def timm_to_mmpretrain(state: dict[str, Tensor], head: str = 'head.layers.head.'
                       ) -> dict[str, Tensor]:
    """timm's names to mmpretrain's; ``head`` is 'head.layers.head.' or 'head.fc.'."""
    out = {}
    for key, value in state.items():
        if key.startswith(('head.', 'head_dist.')):
            distilled = key.startswith('head_dist.')
            out['head.layers.' + key if distilled else head + key[len('head.'):]] = value
            continue
        key = re.sub(r'^norm\.', 'ln1.', re.sub(r'^fc_norm\.', 'ln2.', key))
        for ours, theirs in MMPRETRAIN_NAMES:
            key = key.replace(ours, theirs)
        out['backbone.' + re.sub(r'^blocks\.', 'layers.', key)] = value
    return out


def mmext_to_timm(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Our classifier to timm's names; what belongs to neither backbone nor head is left out."""
    out = cut_prefix(state, 'backbone.')
    for key, value in state.items():
        if key.startswith('head.'):
            out['head.' + key[len('head.fc.' if key.startswith('head.fc.') else 'head.'):]] = value
    return out


def timm_to_mmext(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """timm's names to those of our classifier."""
    return {key.replace('head.', 'head.fc.', 1) if key.startswith('head.') else 'backbone.' + key:
            value for key, value in state.items()}


def to_timm(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Any of the layouts to timm's names."""
    return {'timm': dict, 'mmpretrain': mmpretrain_to_timm, 'mmext': mmext_to_timm}[
        detect_layout(state)](state)


def find_grid(num_patches: int, known: tuple[int, int] | None, own: tuple[int, int]
              ) -> tuple[int, int]:
    """Grid that a checkpoint's positions were stored for.

    ``known`` (from the file or the user) comes first. Published files do not name their grid, nor
    do those of square backbones here: a square one where the count allows it, as timm takes it;
    then the backbone's own where the count is equal.

    Raises:
        ValueError: it is none of these.
    """
    if known is not None:
        return known
    side = round(num_patches ** 0.5)
    if side * side == num_patches:
        return side, side
    if num_patches == own[0] * own[1]:
        return own
    raise ValueError(f'the checkpoint has {num_patches} patch positions, which is no square grid; '
                     'give its grid as pos_grid=(h, w)')


def fit_positions(state: dict[str, Tensor], own_grid: tuple[int, int], with_cls: bool
                  ) -> str | None:
    """Bring ``pos_embed`` of ``state`` (timm's names) to a backbone's grid and prefix, in place.

    Args:
        state: ``pos_grid`` in it says which grid the positions are of, where the count cannot.
        own_grid: (h, w) of the backbone; with_cls: whether it has a class token.

    Returns:
        what was changed, in words, or None.
    """
    stored = state.pop('pos_grid', None)
    pos = state.get('pos_embed')
    if pos is None:
        return None
    num_prefix_tokens = ('cls_token' in state) + ('dist_token' in state)
    known = None if stored is None else (int(stored[0]), int(stored[1]))
    old = find_grid(pos.shape[1] - num_prefix_tokens, known, own_grid)
    prefix = pos[:, :min(num_prefix_tokens, int(with_cls))]
    grid = resize_position_grid(pos, old, own_grid, num_prefix_tokens)[:, num_prefix_tokens:]
    state['pos_embed'] = torch.cat([prefix, grid], 1)
    if old == tuple(own_grid):
        return None
    return f'pos_embed {old[0]}x{old[1]} to {own_grid[0]}x{own_grid[1]}'


def load_vit(model: nn.Module, path: str, prefix: str = '', pos_grid: tuple[int, int] | None = None
             ) -> LoadReport:
    """Load a file of any layout into a ``BiasPrunedViT``, by value, and log one line about it.

    Args:
        model: the backbone; its ``grid`` (h, w) and ``with_cls_token`` say what positions it needs.
        path, prefix: see ``read_state_dict``; a lone ``backbone.`` is found without a prefix.
        pos_grid: grid of the file's positions where it is neither square nor named in the file.

    Raises:
        ValueError: a parameter of the backbone is missing, other than key bias and relative
            positions; a name is left over, other than heads, distillation and pre-training parts,
            and norms or class token that this backbone does not have; or a shape differs.
    """
    own = model.state_dict()
    state = read_state_dict(path, prefix)
    try:
        state = to_timm(state)
    except ValueError as error:
        raise ValueError(f'{path}: {error}') from None
    if pos_grid is not None:
        state['pos_grid'] = torch.tensor(pos_grid)
    absent = {name for name in ('cls_token', 'norm', 'fc_norm')
              if not any(key.split('.')[0] == name for key in own)}
    if not model.with_key_bias:
        absent.add('key_bias')
    return load_by_name(
        model, state, path, type(model).__name__, MAY_BE_NEW.fullmatch,
        lambda key: MAY_BE_DROPPED.fullmatch(key) or absent & set(key.split('.')))
