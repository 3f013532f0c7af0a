"""ViT / DeiT with bias-pruned attention, on timm's blocks.

Sources: "Exploiting Biases in Attention for Transformers" (2026); DeiT (arXiv 2012.12877); MAE
fine-tuning with global pooling (arXiv 2111.06377); ViTDet's windows and relative positions
(arXiv 2203.16527, detectron2 ``projects/ViTDet``); token merging (arXiv 2210.09461). Parameter
names are timm's and the official DeiT and MAE files', new is ``blocks.i.attn.key_bias.weight``.
With the bias at zero and nothing pruned the logits are DeiT's.

Symbols: B images, grid h x w of patch tokens, N = prefix + h * w tokens, C channels, H heads.
"""

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from timm.layers import LayerNorm2d, PatchEmbed, calculate_drop_path_rates, trunc_normal_
from timm.models.vision_transformer import Block
from timm.models.vision_transformer_sam import window_partition, window_unpartition
from torch import Tensor, nn

from mmext.checkpoints.report import LoadReport
from mmext.checkpoints.vit import fit_positions, load_vit
from mmext.layers.biased_attention import BiasedAttention, resolve_rules
from mmext.models.backbones.base import (
    TokenBackbone,
    check_drop_path,
    resolve_arch,
    resolve_indices,
)
from mmext.ops.column_selection import keep_ratio_schedule
from mmext.ops.position_grid import resize_position_grid, sincos_position_grid
from mmext.ops.token_merging import (
    bipartite_soft_matching,
    merge_schedule,
    merge_tokens,
    scaled_r,
    track_tokens,
    unmerge_tokens,
)
from mmext.registry import MODELS

ARCHS = {
    ('deit-tiny', 'deit-t', 'vit-tiny', 'tiny'): dict(embed_dim=192, depth=12, num_heads=3),
    ('deit-small', 'deit-s', 'vit-small', 'small'): dict(embed_dim=384, depth=12, num_heads=6),
    ('deit-base', 'deit-b', 'vit-base', 'base'): dict(embed_dim=768, depth=12, num_heads=12),
    ('vit-large', 'vit-l', 'deit-large', 'large'): dict(embed_dim=1024, depth=24, num_heads=16),
    ('tiny-test',): dict(embed_dim=32, depth=2, num_heads=2),
}
ARCH_KEYS = {'embed_dim', 'depth', 'num_heads', 'mlp_ratio', 'patch_size', 'qkv_bias'}


class Merge(NamedTuple):
    """State of token merging: sizes (B, N), places of the original tokens (B, N0), this layer's r,
    and whether the first token is a class token."""

    size: Tensor
    source: Tensor
    r: int
    num_prefix: int
    prop_attn: bool


class BiasedBlock(Block):
    """timm's pre-norm block around ``BiasedAttention``, with windows and token merging.

    Args:
        attn: options of ``BiasedAttention``.
        window_size: attend within windows of this side; 0 attends globally.
    """

    def __init__(self, dim: int, num_heads: int, qkv_bias: bool, attn: dict, window_size: int = 0,
                 **kwargs):
        super().__init__(dim, num_heads, qkv_bias=qkv_bias, **kwargs)
        self.attn = BiasedAttention(dim, num_heads, qkv_bias=qkv_bias, **attn)
        self.window_size = window_size

    def forward(self, x: Tensor, hw: tuple[int, int], valid: Tensor | None = None,
                merge: Merge | None = None, return_intermediates: bool = False):
        """x (B, N, C), grid hw, valid (B, N) -> (x, merge, intermediates or None)."""
        y, extras = self.norm1(x), None
        if self.window_size:
            y, extras = self._windows(y, hw, valid, return_intermediates)
        elif merge is None:
            y = self.attn(y, hw, valid, return_intermediates)
            y, extras = y if return_intermediates else (y, None)
        else:
            y, merge, matching, extras = self._merging_attention(
                y, valid, merge, return_intermediates)
        x = x + self.drop_path1(self.ls1(y))
        if merge is not None and matching is not None:
            x, size = merge_tokens(x, matching, merge.size)
            merge = Merge(size, track_tokens(merge.source, matching), merge.r, merge.num_prefix,
                          merge.prop_attn)
        x = x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))
        return x, merge, extras

    def _windows(self, y, hw, valid, return_intermediates):
        """Attention within windows; the padding of the last ones takes part, as in detectron2,
        unless a valid mask keeps it out."""
        side = self.window_size
        batch, _, dim = y.shape
        y, padded = window_partition(y.reshape(batch, *hw, dim), side)
        if valid is not None:
            valid = window_partition(valid.reshape(batch, *hw, 1), side)[0].flatten(1)
            valid = valid | ~valid.any(1, keepdim=True)  # windows of padding alone: avoid 0/0
        y = self.attn(y.flatten(1, 2), (side, side), valid, return_intermediates)
        y, extras = y if return_intermediates else (y, None)
        y = window_unpartition(y.unflatten(1, (side, side)), side, hw, padded)
        return y.reshape(batch, hw[0] * hw[1], dim), extras

    def _merging_attention(self, y, valid, merge, return_intermediates):
        """Attention over merged tokens and the matching for the merge that follows it."""
        hw = (1, y.shape[1] - merge.num_prefix)
        log_size = merge.size.clamp(min=1).log() if merge.prop_attn else None
        if valid is not None:
            valid = merge.size > 0
        extras = None
        if return_intermediates:
            _, extras = self.attn(y, hw, valid, True, log_size=log_size)
        out, metric = self.attn(y, hw, valid, log_size=log_size, return_metric=True)
        matching = bipartite_soft_matching(metric, merge.r, merge.num_prefix, valid)
        return out, merge, matching, extras


class ConvStem(nn.Module):
    """Strided 3x3 convolutions down to the patch size, channel norm and GELU between them."""

    def __init__(self, patch_size: int, embed_dim: int):
        super().__init__()
        steps = int(math.log2(patch_size))
        if 2 ** steps != patch_size:
            raise ValueError(f"patch_stem='conv' needs a patch size that is a power of 2, "
                             f'got {patch_size}')
        layers, width = [], 3
        for step in range(steps):
            out = max(embed_dim // 2 ** (steps - 1 - step), 8)
            out = embed_dim if step == steps - 1 else out
            layers.append(nn.Conv2d(width, out, 3, stride=2, padding=1))
            if step < steps - 1:
                layers += [LayerNorm2d(out), nn.GELU()]
            width = out
        self.convs = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, h * p, w * p) -> (B, h * w, C)."""
        return self.convs(x).flatten(2).transpose(1, 2)


@MODELS.register_module()
class BiasPrunedViT(TokenBackbone):
    """Vision transformer whose attention carries a learned key bias and is pruned by it.

    Args:
        arch: 'deit-tiny', 'deit-small', 'deit-base', 'vit-large', 'tiny-test' (aliases in ARCHS),
            or a dict of embed_dim, depth, num_heads and, optionally, mlp_ratio, patch_size and
            qkv_bias.
        img_size: side or (H, W) in pixels that the position embeddings are stored for; any other
            size is resampled in forward.
        patch_size: 16 by default; a dict ``arch`` may hold it instead.
        patch_stem: 'linear' (one convolution of the patch size) or 'conv' (``ConvStem``).
        with_cls_token: False leaves out the class token and its position.
        pos_init: 'normal' (truncated, std .02) or 'sincos' (fixed 2-D start values, still learned).
        out_indices, out_type, frozen_stages, with_cp, init_cfg: see ``TokenBackbone``; in
            ``init_cfg=dict(type='Pretrained', checkpoint=..., prefix=...)`` any file of timm's,
            official, mmpretrain's or our layout fits, positions are resized.
        final_norm: layer norm of the last block's tokens; None applies it unless ``out_type`` is
            'featmap' (ViTDet has none) or ``fc_norm`` is set. Where it is not applied it does not
            exist.
        fc_norm: MAE fine-tuning: mean of the patch tokens, then a layer norm; needs
            out_type='avg_featmap'.
        key_bias, bias_init, train_mode, val_mode, gather, keep_cls, qk_norm: see
            ``BiasedAttention``.
        keep_ratio: None, a number, (r0, r1) for the linear schedule over depth, or one entry a
            block.
        keep_ratio_val: the same for validation alone; 'same' takes ``keep_ratio``.
        tau, tau_val: probability threshold instead of a ratio.
        num_qk_free: the last m blocks attend by the bias alone and have no query and key weights.
        window_size, global_blocks: ViTDet: windows in all blocks but ``global_blocks`` (default:
            the last of each quarter of the depth); pruning happens in the global blocks only. A
            window size of 0 makes every block global.
        rel_pos: decomposed relative positions, as ViTDet.
        tome_r: tokens merged per block at 196 patch tokens (224 pixels, patch 16), scaled with the
            number of tokens; a number, (r, inflect) or one entry a block.
        tome_prop_attn: log of the token sizes on the logits.
        tome_rank_by_size: with it, rank the columns by b + log size instead of b.
        use_valid_mask: keep padding (fourth input channel) out of the attention.
        trainable: 'all', or 'attn' for the attention modules alone.
        drop_path_rate: stochastic depth, linear over the blocks.
        drop_rate, attn_drop_rate: dropout of projections, of attention weights.

    Raises:
        ValueError: an option is out of range or contradicts another.
    """

    stem_names = ('patch_embed', 'pos_embed', 'cls_token')

    def __init__(self, arch: str | dict = 'deit-small', img_size: int | tuple[int, int] = 224,
                 patch_size: int | None = None, patch_stem: Literal['linear', 'conv'] = 'linear',
                 with_cls_token: bool = True, pos_init: Literal['normal', 'sincos'] = 'normal',
                 out_indices: int | Sequence[int] = -1, out_type: str = 'cls_token',
                 final_norm: bool | None = None, fc_norm: bool = False, key_bias: bool = True,
                 bias_init: str = 'normal', qk_norm: bool = False,
                 keep_ratio: float | Sequence | None = None,
                 keep_ratio_val: float | Sequence | Literal['same'] | None = 'same',
                 tau: float | None = None, tau_val: float | Literal['same'] | None = 'same',
                 train_mode: str = 'mask', val_mode: str = 'gather', gather: str = 'auto',
                 keep_cls: bool = False, num_qk_free: int = 0, window_size: int = 0,
                 global_blocks: Sequence[int] | None = None, rel_pos: bool = False,
                 tome_r: int | Sequence | None = 0, tome_prop_attn: bool = True,
                 tome_rank_by_size: bool = False,
                 use_valid_mask: bool = False, trainable: Literal['all', 'attn'] = 'all',
                 drop_path_rate: float = 0.0, drop_rate: float = 0.0, attn_drop_rate: float = 0.0,
                 frozen_stages: int = -1, with_cp: bool = False,
                 init_cfg: dict | list | None = None):
        spec = resolve_arch(arch, ARCHS, ARCH_KEYS)
        patch_size = spec.get('patch_size', 16) if patch_size is None else patch_size
        dim, depth, heads = spec['embed_dim'], spec['depth'], spec['num_heads']
        super().__init__(depth, patch_size, out_indices, out_type, frozen_stages, with_cp, init_cfg)
        check_drop_path(drop_path_rate)
        if global_blocks is None:  # as ViTDet: the last block of each quarter
            quarters = (1, 2, 3, 4) if depth >= 4 else (4,)
            global_blocks = [depth * quarter // 4 - 1 for quarter in quarters]
        windowed = set(range(depth)) - set(
            resolve_indices(global_blocks, depth)) if window_size else set()
        tome_r = merge_schedule(tome_r or 0, depth)
        self._check(with_cls_token, patch_stem, pos_init, fc_norm, final_norm, num_qk_free,
                    windowed, rel_pos, tome_r, trainable)

        self.embed_dim = dim
        self.num_heads = heads
        self.with_cls_token = with_cls_token
        self.num_prefix = int(with_cls_token)
        self.with_key_bias = key_bias
        self.use_valid_mask = use_valid_mask
        self.tome_r = tome_r
        self.tome_prop_attn = tome_prop_attn
        self.trainable = trainable
        self.pos_init = pos_init
        size = tuple(img_size) if isinstance(img_size, Sequence) else (img_size, img_size)
        if len(size) != 2 or not all(isinstance(side, int) and side > 0 for side in size):
            raise ValueError(f'img_size={img_size!r} must be one or two positive integers')
        self.grid = tuple(math.ceil(side / patch_size) for side in size)

        self.patch_embed = ConvStem(patch_size, dim) if patch_stem == 'conv' else PatchEmbed(
            img_size=None, patch_size=patch_size, embed_dim=dim)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim)) if with_cls_token else None
        self.pos_embed = nn.Parameter(
            torch.zeros(1, self.num_prefix + self.grid[0] * self.grid[1], dim))
        if self.grid[0] != self.grid[1]:
            # files of square grids keep the published names; any other names its grid
            self.register_buffer('pos_grid', torch.tensor(self.grid))
        norm_layer = partial(nn.LayerNorm, eps=1e-6)
        drop_path = calculate_drop_path_rates(drop_path_rate, depth)
        attn = dict(key_bias=key_bias, bias_init=bias_init, train_mode=train_mode,
                    val_mode=val_mode, gather=gather, keep_cls=keep_cls,
                    rank_by_size=tome_rank_by_size, attn_drop=attn_drop_rate,
                    proj_drop=drop_rate, norm_layer=norm_layer)
        self.blocks = nn.ModuleList()
        for i in range(depth):
            free = i >= depth - num_qk_free
            side = (window_size, window_size) if i in windowed else self.grid
            self.blocks.append(BiasedBlock(
                dim, heads, spec.get('qkv_bias', True),
                dict(attn, query_key_free=free, qk_norm=qk_norm and not free,
                     rel_pos_size=side if rel_pos else None),
                window_size if i in windowed else 0, mlp_ratio=spec.get('mlp_ratio', 4),
                proj_drop=drop_rate, drop_path=drop_path[i], norm_layer=norm_layer))
        self.windowed = windowed
        last_used = depth - 1 in self.out_indices
        if final_norm is None:
            final_norm = out_type != 'featmap' and not fc_norm
        self.norm = norm_layer(dim) if final_norm and last_used else nn.Identity()
        self.fc_norm = norm_layer(dim) if fc_norm and last_used else nn.Identity()

        self._init_parameters()
        training, validation = resolve_rules(keep_ratio, keep_ratio_val, tau, tau_val)
        self._set_rules(*training, train=True, val=False)
        self._set_rules(*validation, train=False, val=True)
        self.freeze()

    def _check(self, with_cls_token, patch_stem, pos_init, fc_norm, final_norm, num_qk_free,
               windowed, rel_pos, tome_r, trainable):
        for name, value, allowed in (('patch_stem', patch_stem, ('linear', 'conv')),
                                     ('pos_init', pos_init, ('normal', 'sincos')),
                                     ('trainable', trainable, ('all', 'attn'))):
            if value not in allowed:
                raise ValueError(f'{name}={value!r} must be one of {allowed}')
        if not 0 <= num_qk_free <= self.depth:
            raise ValueError(f'num_qk_free={num_qk_free} must be within 0..{self.depth}, the depth')
        if self.out_type == 'cls_token' and not with_cls_token:
            raise ValueError("out_type='cls_token' needs with_cls_token=True; without a class "
                             "token use 'avg_featmap', 'featmap' or 'raw'")
        if fc_norm and (self.out_type != 'avg_featmap' or final_norm):
            raise ValueError('fc_norm=True replaces the final norm and needs '
                             "out_type='avg_featmap'")
        if (windowed or rel_pos) and with_cls_token:
            raise ValueError('windows and relative positions know patch tokens only: '
                             'with_cls_token=False')
        if (windowed or rel_pos) and any(tome_r):
            raise ValueError('token merging dissolves the grid that windows and relative '
                             'positions need: tome_r=0')

    def _init_parameters(self) -> None:
        """As timm's DeiT: truncated normal weights, zero biases; the class token nearly zero."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for block in self.blocks:
            block.attn.reset_key_bias()
        if self.cls_token is not None:
            nn.init.normal_(self.cls_token, std=1e-6)
        if self.pos_init == 'sincos':
            self.pos_embed.data.copy_(
                sincos_position_grid(self.grid, self.embed_dim, self.num_prefix))
        else:
            trunc_normal_(self.pos_embed, std=0.02)

    def freeze(self) -> None:
        """Frozen stages, blocks behind the last output, and all but attention where asked for."""
        super().freeze()
        for block in self.blocks[max(self.out_indices) + 1:]:
            block.requires_grad_(False)
        if self.trainable == 'attn':
            for name, parameter in self.named_parameters():
                if '.attn.' not in name:
                    parameter.requires_grad_(False)

    # ------------------------------------------------------------------ live settings
    def set_keep_ratio(self, value: float | Sequence | None, train: bool = True,
                       val: bool = True) -> None:
        """Change what is kept: None (dense), a number, (r0, r1), or one entry a block."""
        self._set_rules(value, None, train, val)

    def set_tau(self, value: float | None, train: bool = True, val: bool = True) -> None:
        """Change to a probability threshold; None is dense."""
        self._set_rules(None, value, train, val)

    def set_gather(self, value: Literal['auto', 'before', 'after']) -> None:
        """Where kept columns are gathered; 'after' the projection is what the paper counts."""
        if value not in ('auto', 'before', 'after'):
            raise ValueError(f"gather={value!r} must be 'auto', 'before' or 'after'")
        for block in self.blocks:
            block.attn.gather = value

    def set_tome(self, r: int | Sequence, prop_attn: bool | None = None) -> None:
        """Change token merging; 0 switches it off."""
        r = merge_schedule(r or 0, self.depth)
        if any(r) and (self.windowed or self.blocks[0].attn.rel_pos_h is not None):
            raise ValueError('token merging dissolves the grid that windows and relative '
                             'positions need')
        self.tome_r = r
        self.tome_prop_attn = self.tome_prop_attn if prop_attn is None else prop_attn

    def _set_rules(self, keep_ratio, tau, train, val) -> None:
        ratios = keep_ratio_schedule(keep_ratio, self.depth)
        for i, (block, ratio) in enumerate(zip(self.blocks, ratios, strict=True)):
            if tau is not None:
                block.attn.set_tau(None if i in self.windowed else tau, train, val)
            else:
                block.attn.set_keep_ratio(None if i in self.windowed else ratio, train, val)

    # ------------------------------------------------------------------ forward
    def embed(self, x: Tensor) -> tuple[Tensor, tuple[int, int], Tensor | None]:
        """x (B, 3 or 4, H, W) -> tokens (B, N, C) with positions, grid, valid (B, N) or None."""
        x, hw, valid = self.split_input(x)
        # stored token by token: else every norm of the network copies, 3 % of its time on CPU
        x = self.patch_embed(x).contiguous()
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1).to(x.dtype), x], 1)
        x = x + resize_position_grid(self.pos_embed, self.grid, hw, self.num_prefix)
        if not self.use_valid_mask or valid is None:
            return x, hw, None
        return x, hw, F.pad(valid, (self.num_prefix, 0), value=True)

    def _run(self, x: Tensor, layers: Iterable[int] = (), stop: int | None = None):
        """Yield (block index, tokens in, tokens out, grid, valid, merge, intermediates)."""
        x, hw, valid = self.embed(x)
        merge = None
        if any(self.tome_r):
            size = x.new_ones(x.shape[:2], dtype=torch.float32) if valid is None else valid.float()
            source = torch.arange(x.shape[1], device=x.device).expand(x.shape[0], -1)
            merge = Merge(size, source, 0, self.num_prefix, self.tome_prop_attn)
        for i, block in enumerate(self.blocks[:stop]):
            before = x
            if merge is not None:
                merge = Merge(merge.size, merge.source, scaled_r(self.tome_r[i], hw[0] * hw[1]),
                              merge.num_prefix, merge.prop_attn)
            x, merge, extras = self.run_block(block, x, hw, valid, merge, i in layers)
            yield i, before, x, hw, valid, merge, extras

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """x (B, 3 or 4, H, W) -> one output of ``out_type`` per entry of ``out_indices``."""
        outputs = {}
        for i, _, y, hw, valid, merge, _ in self._run(x, stop=max(self.out_indices) + 1):
            if i not in self.out_indices:
                continue
            y = self.norm(y) if i == self.depth - 1 else y
            if merge is not None and self.out_type != 'cls_token':
                y = unmerge_tokens(y, merge.source)
            patch_valid = None if valid is None else valid[:, self.num_prefix:]
            y = self.format_output(y, hw, patch_valid)
            outputs[i] = self.fc_norm(y) if i == self.depth - 1 else y
        return tuple(outputs[i] for i in self.out_indices)

    def forward_intermediates(
            self, x: Tensor, layers: Iterable[int] | None = None) -> dict[int, dict[str, Tensor]]:
        """See ``TokenBackbone``; windowed blocks have their windows in the batch axis."""
        layers = resolve_indices(layers, self.depth)
        return {i: dict(extras, x_in=before, x_out=after)
                for i, before, after, _, _, _, extras in self._run(x, layers, max(layers) + 1)
                if i in layers}

    # ------------------------------------------------------------------ optimizer, checkpoints
    def no_weight_decay(self) -> set[str]:
        return {'pos_embed', 'cls_token'}

    def load_pretrained(self, checkpoint: str, prefix: str = '',
                        pos_grid: tuple[int, int] | None = None) -> LoadReport:
        """Load a file by value; see ``mmext.checkpoints.vit.load_vit``."""
        return load_vit(self, checkpoint, prefix, pos_grid)

    def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs):
        """Positions of another grid are resampled in any load, also mmengine's."""
        names = ('pos_embed', 'cls_token', 'dist_token', 'pos_grid')
        positions = {
            name: state_dict[prefix + name] for name in names if prefix + name in state_dict}
        if 'pos_embed' in positions:
            fit_positions(positions, self.grid, self.with_cls_token)
            state_dict[prefix + 'pos_embed'] = positions['pos_embed']
            state_dict.pop(prefix + 'pos_grid', None)
            if hasattr(self, 'pos_grid'):
                state_dict[prefix + 'pos_grid'] = self.pos_grid
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
