"""What every token backbone of mmext shares: input mask and padding, outputs, freezing, depth.

Symbols: B images, H x W pixels, patch size p, grid h x w = ceil(H/p) x ceil(W/p), N tokens =
prefix tokens (class token) first, then h*w patch tokens in raster order, C channels.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

OUT_TYPES = ('featmap', 'cls_token', 'avg_featmap', 'raw')


class BlockPass(NamedTuple):
    """One block of a forward pass: tokens (B, N, C) before and after it, and what travels along.

    ``merge`` is the state of token merging, ``intermediates`` what the attention layer tells.
    """

    index: int
    x_in: Tensor
    x_out: Tensor
    hw: tuple[int, int]
    valid: Tensor | None = None
    intermediates: dict[str, Tensor] | None = None
    merge: tuple | None = None


class TokenBackbone(BaseModule):
    """Base of the backbones whose features are one sequence of tokens.

    A subclass builds ``self.blocks`` (indexable, one module per layer), implements ``forward``,
    ``forward_intermediates`` and ``load_pretrained``, lists its embedding in ``stem_names`` and
    its last norms in ``norm_names``, and calls ``self.freeze()`` at the end of its constructor.

    The fourth input channel, where there is one, marks pixels: 1 image, 0 padding. It is
    stripped here. A token is valid when any pixel of its patch is image; tokens that only exist
    because the image was padded to a multiple of the patch size are valid as well, as long as
    they hold an image pixel. This is the one padding contract; the layers get ``valid`` (B, N).

    Args:
        depth: number of blocks.
        patch_size: side of a patch in pixels.
        out_indices: block index or indices whose output is returned; negative ones count from the
            last block.
        out_type: 'featmap' (B, C, h, w), 'cls_token' (B, C), 'avg_featmap' (B, C; mean over the
            valid patch tokens) or 'raw' (B, N, C).
        frozen_stages: k >= 0 freezes the embedding and the first k blocks, -1 nothing; all blocks
            take the norms behind them along.
        with_cp: non-reentrant activation checkpointing of each block in training.
        init_cfg: mmengine's; ``dict(type='Pretrained', checkpoint=..., prefix=...)`` goes to
            ``load_pretrained``, which maps names and resizes positions.

    Raises:
        ValueError: an option is out of range.
    """

    stem_names: tuple[str, ...] = ('patch_embed', 'pos_embed', 'cls_token')
    norm_names: tuple[str, ...] = ('norm',)

    def __init__(self, depth: int, patch_size: int, out_indices: int | Sequence[int] = -1,
                 out_type: str = 'featmap', frozen_stages: int = -1, with_cp: bool = False,
                 init_cfg: dict | list | None = None):
        super().__init__(init_cfg)
        if out_type not in OUT_TYPES:
            raise ValueError(f'out_type={out_type!r} is unknown, choose one of {OUT_TYPES}')
        if not -1 <= frozen_stages <= depth:
            raise ValueError(f'frozen_stages={frozen_stages} must be within -1..{depth}')
        if not isinstance(patch_size, int) or patch_size < 1:
            raise ValueError(f'patch_size={patch_size!r} must be an integer, at least 1')
        self.depth = depth
        self.patch_size = patch_size
        self.out_indices = resolve_indices(out_indices, depth)
        self.out_type = out_type
        self.frozen_stages = frozen_stages
        self.with_cp = with_cp

    # ------------------------------------------------------------------ to be written
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """x (B, 3 or 4, H, W) -> one output per entry of ``out_indices``."""
        raise NotImplementedError

    def forward_intermediates(
            self, x: Tensor, layers: Iterable[int] | None = None) -> dict[int, dict[str, Tensor]]:
        """Intermediates of the attention layers, computed in the layers themselves.

        Args:
            x: (B, 3 or 4, H, W).
            layers: block indices, negative ones count from the last; None for all.

        Returns:
            block index -> the layer's dict plus ``x_in`` and ``x_out`` (B, N, C), the tokens
            before and after the block.
        """
        raise NotImplementedError

    def load_pretrained(self, checkpoint: str, prefix: str = '') -> None:
        """Load a file of this family by value, mapping names; loud when it does not fit."""
        raise NotImplementedError(f'{type(self).__name__} has no checkpoint key map')

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters of more than one axis that are not decayed, as timm's."""
        return set()

    # ------------------------------------------------------------------ input and output
    def split_input(self, x: Tensor, pad: bool = True
                    ) -> tuple[Tensor, tuple[int, int], Tensor | None]:
        """Strip the mask channel and pad right and bottom to a multiple of the patch size.

        Args:
            x: (B, 3, H, W) or, with the mask channel, (B, 4, H, W).
            pad: False leaves the image as it is, for stems that round up by themselves.

        Returns:
            image (B, 3, h*p, w*p), grid (h, w), valid (B, h*w) bool or None without a mask.
        """
        if x.dim() != 4 or x.shape[1] not in (3, 4):
            raise ValueError(
                f'expected images (B, 3, H, W), or (B, 4, H, W) with a mask of valid pixels as '
                f'fourth channel, got {tuple(x.shape)}')
        p = self.patch_size
        height, width = x.shape[-2:]
        hw = (-(-height // p), -(-width // p))
        missing = (0, -width % p, 0, -height % p)
        if pad and any(missing):
            x = F.pad(x, missing)
        if x.shape[1] == 3:
            return x, hw, None
        x, mask = x[:, :3], x[:, 3:]
        valid = F.max_pool2d(mask, p, ceil_mode=True).flatten(1) > 0
        # an image of padding alone has no meaning; attending to all of it avoids 0/0
        return x, hw, valid | ~valid.any(1, keepdim=True)

    def format_output(self, x: Tensor, hw: tuple[int, int], valid: Tensor | None = None) -> Tensor:
        """Tokens x (B, N, C) to ``out_type``; the last h*w tokens are the patches.

        valid (B, h*w) keeps padding out of the mean of 'avg_featmap', and makes it zero in
        'featmap'.
        """
        if self.out_type == 'raw':
            return x
        if self.out_type == 'cls_token':
            return x[:, 0]
        x = x[:, x.shape[1] - hw[0] * hw[1]:]
        if self.out_type == 'featmap':
            if valid is not None:  # necks know padding by it
                x = x * valid.unsqueeze(-1)
            return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], *hw).contiguous()
        if valid is None:
            return x.mean(1)
        weight = valid.unsqueeze(-1).to(x.dtype)
        return (x * weight).sum(1) / weight.sum(1)

    def run_block(self, block: Callable, *args):
        """Call a block, or a method of one, keeping only its input for backward when ``with_cp``
        is on."""
        if self.with_cp and self.training and torch.is_grad_enabled():
            return checkpoint(block, *args, use_reentrant=False)
        return block(*args)

    # ------------------------------------------------------------------ freezing
    def frozen_parts(self) -> list[nn.Module | nn.Parameter]:
        """Modules and parameters that ``frozen_stages`` covers."""
        if self.frozen_stages < 0:
            return []
        names = self.stem_names
        if self.frozen_stages == self.depth:
            names += self.norm_names
        parts = [getattr(self, name, None) for name in names]
        return [part for part in parts if part is not None] + list(
            self.blocks[:self.frozen_stages])

    def freeze(self) -> None:
        for part in self.frozen_parts():
            part.requires_grad_(False)

    def train(self, mode: bool = True):
        super().train(mode)
        if mode:
            for part in self.frozen_parts():
                if isinstance(part, nn.Module):
                    part.eval()
        return self

    # ------------------------------------------------------------------ optimizer, checkpoints
    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """Layer id for layer-wise decay, as mmpretrain counts.

        Returns:
            (layer id, depth + 2): embedding 0, block i -> i + 1, everything else depth + 1.
        """
        num_layers = self.depth + 2
        if not param_name.startswith(prefix):
            return num_layers - 1, num_layers
        name = param_name[len(prefix):]
        if name.split('.')[0] in self.stem_names:
            return 0, num_layers
        if name.startswith('blocks.'):
            return int(name.split('.')[1]) + 1, num_layers
        return num_layers - 1, num_layers

    def init_weights(self) -> None:
        """mmengine's initialization; a 'Pretrained' entry goes through ``load_pretrained``."""
        if self.is_init:
            return super().init_weights()
        init_cfg = self.init_cfg
        cfgs = [init_cfg] if isinstance(init_cfg, dict) else list(init_cfg or [])
        pretrained = [cfg for cfg in cfgs if cfg.get('type') == 'Pretrained']
        self.init_cfg = [cfg for cfg in cfgs if cfg.get('type') != 'Pretrained'] or None
        super().init_weights()
        self.init_cfg = init_cfg
        for cfg in copy.deepcopy(pretrained):
            del cfg['type']
            cfg.pop('map_location', None)
            self.load_pretrained(**cfg)


def check_drop_path(rate: float) -> None:
    if not 0 <= rate < 1:
        raise ValueError(f'drop_path_rate={rate!r} must be at least 0 and below 1')


def resolve_indices(indices: int | Iterable[int] | None, depth: int) -> tuple[int, ...]:
    """Block indices with negative ones resolved, None for all; ValueError when out of range."""
    if indices is None:
        return tuple(range(depth))
    given = (indices,) if isinstance(indices, int) else tuple(indices)
    for index in given:
        if not -depth <= index < depth:
            raise ValueError(f'block index {index} is out of range for a depth of {depth}')
    return tuple(index % depth for index in given)


def resolve_arch(arch: str | dict, archs: dict[tuple[str, ...], dict], keys: set[str]) -> dict:
    """Size of a backbone by name or dict.

    Args:
        arch: one of the aliases in ``archs``, or a dict of embed_dim, depth, num_heads, ...
        archs: aliases -> embed_dim, depth, num_heads, ...
        keys: what a dict may hold.

    Raises:
        ValueError: the name is unknown, or the dict has missing or unknown keys.
    """
    if isinstance(arch, str):
        for names, spec in archs.items():
            if arch.lower().replace('_', '-') in names:
                return spec
        known = [names[0] for names in archs]
        raise ValueError(f'arch={arch!r} is unknown; choose one of {known} or give a dict')
    missing = {'embed_dim', 'depth', 'num_heads'} - set(arch)
    unknown = set(arch) - keys
    if missing or unknown:
        raise ValueError(f'arch: missing {sorted(missing)}, unknown {sorted(unknown)}; '
                         f'known are {sorted(keys)}')
    return dict(arch)
