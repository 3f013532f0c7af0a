"""ViT / DeiT with bias-pruned attention, on timm's blocks.

Sources: "Exploiting Biases in Attention for Transformers" (2026); DeiT (arXiv 2012.12877); MAE
fine-tuning with global pooling (arXiv 2111.06377); ViTDet's windows and relative positions
(arXiv 2203.16527, detectron2 ``projects/ViTDet``); token merging (arXiv 2210.09461). Parameter
names are timm's and the official DeiT and MAE files', new is ``blocks.i.attn.key_bias.weight``.
With the bias at zero and nothing pruned the logits are DeiT's.

Symbols: B images, grid h x w of patch tokens, N = prefix + h * w tokens, C channels, H heads.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from mmext.layers.biased_attention import BiasedAttention, add, resolve_rules, with_options
from mmext.layers.query_key_free import QueryKeyFreeAttention
from mmext.layers.relative_attention import RelativeBiasedAttention
from mmext.models.backbones.base import (
    BlockPass,
    TokenBackbone,
    check_drop_path,
    resolve_arch,
    resolve_indices,
)
from mmext.ops.column_selection import KeepRule, keep_rules
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
    """State of token merging: sizes (B, N) of the tokens, places (B, N0) of the original ones, how
    many this block merges, and whether sizes count in the attention."""

    size: Tensor
    source: Tensor
    r: int
    prop_attn: bool


class BiasedBlock(Block):
    """timm's pre-norm block around bias-pruned attention, with windows and token merging.

    Args:
        attn_layer: the attention, see ``with_options``.
        window_size: attend within windows of this side; 0 attends globally.
        args, kwargs: of timm's ``Block``.
    """

    def __init__(self, *args, attn_layer: type, window_size: int = 0, **kwargs):
        super().__init__(*args, attn_layer=attn_layer, **kwargs)
        self.window_size = window_size

    def forward(self, x: Tensor, hw: tuple[int, int], valid: Tensor | None = None) -> Tensor:
        """x (B, N, C), grid hw, valid (B, N) -> (B, N, C)."""
        y, grid, inside, undo = self.windows(self.norm1(x), hw, valid)
        x = x + self.drop_path1(self.ls1(undo(self.attn(y, grid, inside))))
        return self.add_mlp(x)

    def forward_merging(self, x: Tensor, hw: tuple[int, int], valid: Tensor | None, merge: Merge
                        ) -> tuple[Tensor, Merge]:
        """Attention over merged tokens, then ``merge.r`` further merges, as ToMe places them.

        The keys of all columns say which tokens are alike: the kept ones are picked from them.
        """
        attn, y = self.attn, self.norm1(x)
        if valid is not None:
            valid = merge.size > 0
        _, valid, size_bias = attn.check_call(y, None, False, valid, log_size(merge))
        bias = attn.compute_bias(y)
        columns, heads = attn.choose(bias, valid, size_bias), attn.project(y)
        y = attn.finish(attn.attend(heads.gather(columns), add(bias, size_bias), columns), y)
        x = x + self.drop_path1(self.ls1(y))
        metric = (heads.v if heads.k is None else heads.k).mean(1)
        matching = bipartite_soft_matching(metric, merge.r, attn.num_prefix_tokens, valid)
        if matching is not None:
            x, size = merge_tokens(x, matching, merge.size)
            merge = merge._replace(size=size, source=track_tokens(merge.source, matching))
        return self.add_mlp(x), merge

    def forward_intermediates(self, x: Tensor, hw: tuple[int, int], valid: Tensor | None = None,
                              merge: Merge | None = None) -> dict[str, Tensor]:
        """What the attention layer tells of the tokens that this block gets; windows are in the
        batch axis."""
        if merge is not None:
            valid = None if valid is None else merge.size > 0
            return self.attn.forward_intermediates(
                self.norm1(x), valid=valid, log_size=log_size(merge))[1]
        y, grid, inside, _ = self.windows(self.norm1(x), hw, valid)
        return self.attn.forward_intermediates(y, grid, inside)[1]

    def add_mlp(self, x: Tensor) -> Tensor:
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))

    def windows(self, y: Tensor, hw: tuple[int, int], valid: Tensor | None):
        """Tokens, grid and valid of the windows, and the function that takes the tokens back.

        The padding of the last windows takes part, as in detectron2, unless a valid mask keeps it
        out.
        """
        side = self.window_size
        if not side:
            return y, hw, valid, lambda y: y
        batch, num_tokens, dim = y.shape
        y, padded = window_partition(y.reshape(batch, *hw, dim), side)
        if valid is not None:
            valid = window_partition(valid.reshape(batch, *hw, 1), side)[0].flatten(1)
            valid = valid | ~valid.any(1, keepdim=True)  # windows of padding alone: avoid 0/0

        def undo(y: Tensor) -> Tensor:
            y = window_unpartition(y.unflatten(1, (side, side)), side, hw, padded)
            return y.reshape(batch, num_tokens, dim)

        return y.flatten(1, 2), (side, side), valid, undo


def log_size(merge: Merge) -> Tensor | None:
    """(B, N), what proportional attention adds to the logits."""
    return merge.size.clamp(min=1).log() if merge.prop_attn else None


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
        key_bias, bias_init, train_mode, val_mode, gather, keep_prefix, qk_norm: see
            ``BiasedAttention``.
        keep_ratio: None, a number, (r0, r1) for the linear schedule over depth, ``dict(start=r0,
            end=r1, shape=...)`` for another shape, or one entry a block; see
            ``keep_ratio_schedule``.
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
        use_valid_mask: keep padding (fourth input channel) out of the attention; in feature maps
            it is zero.
        pos_fit: another grid than that of ``img_size`` gets its positions by 'resize', as
            classifiers do, or by 'crop': those of the upper left corner, so that an image on a
            smaller canvas keeps the positions it has on the full one. A larger grid is resized.
        trainable: 'all', or 'attn' for the attention modules alone.
        drop_path_rate: stochastic depth, linear over the blocks.
        drop_rate, attn_drop_rate: dropout of projections, of attention weights.

    Raises:
        ValueError: an option is out of range or contradicts another.
    """

    norm_names = ('norm', 'fc_norm')

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
                 keep_prefix: bool = True, num_qk_free: int = 0, window_size: int = 0,
                 global_blocks: Sequence[int] | None = None, rel_pos: bool = False,
                 tome_r: int | Sequence | None = 0, tome_prop_attn: bool = True,
                 tome_rank_by_size: bool = False,
                 use_valid_mask: bool = False, pos_fit: Literal['resize', 'crop'] = 'resize',
                 trainable: Literal['all', 'attn'] = 'all',
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
        if pos_fit not in ('resize', 'crop'):
            raise ValueError(f"pos_fit={pos_fit!r} must be 'resize' or 'crop'")
        self.pos_fit = pos_fit
        self._check(with_cls_token, patch_stem, pos_init, fc_norm, final_norm, num_qk_free,
                    windowed, rel_pos, tome_r, trainable)

        self.embed_dim = dim
        self.num_heads = heads
        self.with_cls_token = with_cls_token
        self.num_prefix_tokens = int(with_cls_token)
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
            torch.zeros(1, self.num_prefix_tokens + self.grid[0] * self.grid[1], dim))
        if self.grid[0] != self.grid[1]:
            # files of square grids keep the published names; any other names its grid
            self.register_buffer('pos_grid', torch.tensor(self.grid))
        norm_layer = partial(nn.LayerNorm, eps=1e-6)
        drop_path = calculate_drop_path_rates(drop_path_rate, depth)
        attn = dict(key_bias=key_bias, bias_init=bias_init, train_mode=train_mode,
                    val_mode=val_mode, gather=gather, keep_prefix=keep_prefix,
                    num_prefix_tokens=self.num_prefix_tokens, rank_by_size=tome_rank_by_size)
        self.blocks = nn.ModuleList()
        for i in range(depth):
            free = i >= depth - num_qk_free
            side = (window_size, window_size) if i in windowed else self.grid
            layer = (
                with_options(QueryKeyFreeAttention, **attn) if free else
                with_options(RelativeBiasedAttention, rel_pos_size=side, pos_fit=pos_fit, **attn)
                if rel_pos else
                with_options(BiasedAttention, **attn))
            self.blocks.append(BiasedBlock(
                dim, heads, qkv_bias=spec.get('qkv_bias', True), qk_norm=qk_norm and not free,
                attn_layer=layer, window_size=window_size if i in windowed else 0,
                mlp_ratio=spec.get('mlp_ratio', 4), proj_drop=drop_rate,
                attn_drop=attn_drop_rate, drop_path=drop_path[i], norm_layer=norm_layer))
        self.windowed = windowed
        last_used = depth - 1 in self.out_indices
        if final_norm is None:
            final_norm = out_type != 'featmap' and not fc_norm
        self.norm = norm_layer(dim) if final_norm and last_used else nn.Identity()
        self.fc_norm = norm_layer(dim) if fc_norm and last_used else nn.Identity()

        self._init_parameters()
        training, validation = resolve_rules(keep_ratio, keep_ratio_val, tau, tau_val, depth)
        self.set_rules(training, val=False)
        self.set_rules(validation, train=False)
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
        if rel_pos and num_qk_free:
            raise ValueError('query-key-free blocks take no relative positions: num_qk_free=0 or '
                             'rel_pos=False')
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
                sincos_position_grid(self.grid, self.embed_dim, self.num_prefix_tokens))
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
    def set_keep_ratio(self, value: float | Sequence | Mapping | None, train: bool = True,
                       val: bool = True) -> None:
        """Change what is kept, in any form that ``keep_ratio`` has."""
        self.set_rules(keep_rules(value, None, self.depth), train, val)

    def set_tau(self, value: float | None, train: bool = True, val: bool = True) -> None:
        """Change to a probability threshold; None is dense."""
        self.set_rules(keep_rules(None, value, self.depth), train, val)

    def set_rules(self, rules: Sequence[KeepRule], train: bool = True, val: bool = True) -> None:
        """One rule a block; windowed blocks stay dense."""
        for i, (block, rule) in enumerate(zip(self.blocks, rules, strict=True)):
            block.attn.set_rule(KeepRule() if i in self.windowed else rule, train, val)

    def set_gather(self, value: Literal['auto', 'before', 'after']) -> None:
        """Where kept columns are gathered; 'after' the projection is what the paper counts."""
        for block in self.blocks:
            block.attn.configure(gather=value)

    def set_tome(self, r: int | Sequence, prop_attn: bool | None = None) -> None:
        """Change token merging; 0 switches it off."""
        r = merge_schedule(r or 0, self.depth)
        if any(r) and (self.windowed or isinstance(self.blocks[0].attn, RelativeBiasedAttention)):
            raise ValueError('token merging dissolves the grid that windows and relative '
                             'positions need')
        self.tome_r = r
        self.tome_prop_attn = self.tome_prop_attn if prop_attn is None else prop_attn

    # ------------------------------------------------------------------ forward
    def embed(self, x: Tensor) -> tuple[Tensor, tuple[int, int], Tensor | None]:
        """x (B, 3 or 4, H, W) -> tokens (B, N, C) with positions, grid, valid (B, N) or None."""
        x, hw, valid = self.split_input(x)
        # stored token by token: else every norm of the network copies, 3 % of its time on CPU
        x = self.patch_embed(x).contiguous()
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1).to(x.dtype), x], 1)
        x = x + self.positions(hw)
        if not self.use_valid_mask or valid is None:
            return x, hw, None
        return x, hw, F.pad(valid, (self.num_prefix_tokens, 0), value=True)

    def positions(self, hw: tuple[int, int]) -> Tensor:
        """Positions (1, prefix + h * w, C) of a grid."""
        count = self.num_prefix_tokens
        if self.pos_fit == 'resize' or hw[0] > self.grid[0] or hw[1] > self.grid[1]:
            return resize_position_grid(self.pos_embed, self.grid, hw, count)
        grid = self.pos_embed[:, count:].unflatten(1, self.grid)[:, :hw[0], :hw[1]]
        return torch.cat([self.pos_embed[:, :count], grid.flatten(1, 2)], 1)

    def passes(self, x: Tensor, layers: Iterable[int] = (), stop: int | None = None
               ) -> Iterator[BlockPass]:
        """Run the blocks up to ``stop``, with the intermediates of those in ``layers``."""
        x, hw, valid = self.embed(x)
        merge = None
        if any(self.tome_r):
            size = x.new_ones(x.shape[:2], dtype=torch.float32) if valid is None else valid.float()
            source = torch.arange(x.shape[1], device=x.device).expand(x.shape[0], -1)
            merge = Merge(size, source, 0, self.tome_prop_attn)
        for i, block in enumerate(self.blocks[:stop]):
            before, extras = x, None
            if i in layers:
                extras = block.forward_intermediates(x, hw, valid, merge)
            if merge is None:
                x = self.run_block(block, x, hw, valid)
            else:
                merge = merge._replace(r=scaled_r(self.tome_r[i], hw[0] * hw[1]))
                x, merge = self.run_block(block.forward_merging, x, hw, valid, merge)
            yield BlockPass(i, before, x, hw, valid, extras, merge)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """x (B, 3 or 4, H, W) -> one output of ``out_type`` per entry of ``out_indices``."""
        outputs = {}
        for step in self.passes(x, stop=max(self.out_indices) + 1):
            if step.index not in self.out_indices:
                continue
            last = step.index == self.depth - 1
            y = self.norm(step.x_out) if last else step.x_out
            if step.merge is not None and self.out_type != 'cls_token':
                y = unmerge_tokens(y, step.merge.source)
            valid = None if step.valid is None else step.valid[:, self.num_prefix_tokens:]
            y = self.format_output(y, step.hw, valid)
            outputs[step.index] = self.fc_norm(y) if last else y
        return tuple(outputs[i] for i in self.out_indices)

    def forward_intermediates(
            self, x: Tensor, layers: Iterable[int] | None = None) -> dict[int, dict[str, Tensor]]:
        """See ``TokenBackbone``; windowed blocks have their windows in the batch axis."""
        layers = resolve_indices(layers, self.depth)
        return {step.index: dict(step.intermediates, x_in=step.x_in, x_out=step.x_out)
                for step in self.passes(x, layers, max(layers) + 1) if step.index in layers}

    # ------------------------------------------------------------------ optimizer, checkpoints
    def no_weight_decay(self) -> set[str]:
        return {'pos_embed', 'cls_token'}

    def load_pretrained(self, checkpoint: str, prefix: str = '',
                        pos_grid: tuple[int, int] | None = None) -> LoadReport:
        """Load a file by value; see ``mmext.checkpoints.vit.load_vit``."""
        return load_vit(self, checkpoint, prefix, pos_grid)

    def fit_state_dict(self, state_dict: dict[str, Tensor], prefix: str = '') -> list[str]:
        """Bring positions of another grid or prefix to this one's, in place, in any load, also
        mmengine's; returns what was done, in words."""
        names = ('pos_embed', 'cls_token', 'dist_token', 'pos_grid')
        positions = {
            name: state_dict[prefix + name] for name in names if prefix + name in state_dict}
        if 'pos_embed' not in positions:
            return []
        done = fit_positions(positions, self.grid, self.with_cls_token)
        state_dict[prefix + 'pos_embed'] = positions['pos_embed']
        state_dict.pop(prefix + 'pos_grid', None)
        if hasattr(self, 'pos_grid'):
            state_dict[prefix + 'pos_grid'] = self.pos_grid
        return [done] if done else []

    def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs):
        self.fit_state_dict(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
