"""Any vision transformer of timm as a backbone, its attention pruned by a learned key bias.

Blocks, positions, weights and forward pass are timm's own (``forward_intermediates``,
``checkpoint_filter_fn``, ``group_matcher``); only the attention is changed, by
``mmext.pruning.prune_attention``. Parameter names are timm's under ``vit.``; new is
``...attn.key_bias.weight``.

Symbols: B images, H x W pixels, grid h x w of patch tokens, N = prefix + h * w tokens, C channels.
"""

import difflib
import inspect
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import timm
import torch
import torch.nn.functional as F
from timm.models import group_parameters
from torch import Tensor, nn

from mmext.checkpoints.files import cut_prefix, read_state_dict
from mmext.checkpoints.report import LoadReport, load_by_name
from mmext.layers.biased_attention import BiasedAttention, resolve_rules
from mmext.models.backbones.base import TokenBackbone, resolve_indices
from mmext.ops.column_selection import KeepRule, keep_rules
from mmext.pruning import prune_attention
from mmext.registry import MODELS

MAY_BE_NEW = re.compile(r'vit\..*\.key_bias\.weight')
# Heads, poolers and norms behind the features, and what only pre-training uses
MAY_BE_DROPPED = re.compile(
    r'vit\.(head|head_dist|head_drop|fc_norm|norm|neck|attn_pool|mask_token|cls_head|decoder)\b.*')


@MODELS.register_module()
class TimmViT(TokenBackbone):
    """``timm.create_model(model_name)`` without its head, with bias-pruned attention.

    Args:
        model_name: of timm, e.g. 'vit_small_patch14_reg4_dinov2', 'vit_small_patch16_dinov3',
            'eva02_base_patch14_224', 'samvit_base_patch16'.
        patch_size: instead of the model's own; positions and patch embedding of a loaded file are
            resampled by timm. Of a hybrid ('vit_tiny_r_s16_p8_224') the patches of its stem's map.
        img_size: side or (H, W) that positions are stored for. Other sizes are resampled in
            forward where the family can; BEiT's tables cannot: give the size that is trained on.
        out_indices, out_type, frozen_stages, with_cp, init_cfg: see ``TokenBackbone``. In
            ``init_cfg=dict(type='Pretrained', checkpoint=FILE)`` any local file that timm's
            ``checkpoint_filter_fn`` of the family reads, or a checkpoint of an own run.
        key_bias: False leaves timm's attention as it is: the plain baseline, nothing to prune.
        final_norm: the model's last norm on every output; None applies it unless ``out_type`` is
            'featmap'. Where it is not applied it does not exist.
        keep_ratio, keep_ratio_val, tau, tau_val: see ``BiasPrunedViT``; one entry a block. Blocks
            with windows stay dense.
        train_mode, val_mode, gather, keep_prefix: see ``BiasedAttention``.
        bias_init: start of the key bias, 'normal' (std .02), 'zeros', or 'tiny', a random order
            that changes the dense output by rounding only.
        use_valid_mask: keep padding (fourth input channel) out of the attention; for families whose
            forward takes an attention mask.
        drop_path_rate: stochastic depth.
        pretrained: fetch timm's weights from its hub.
        model_args: further options of the timm model, e.g. ``dict(embed_dim=192, depth=6)``.

    Raises:
        ValueError: timm has no such model, its attention cannot be pruned, or an option is out of
            range.
    """

    def __init__(self, model_name: str, patch_size: int | None = None,
                 img_size: int | Sequence[int] | None = None,
                 out_indices: int | Sequence[int] = -1, out_type: str = 'featmap',
                 key_bias: bool = True, final_norm: bool | None = None,
                 keep_ratio: float | Sequence | Mapping | None = None,
                 keep_ratio_val: float | Sequence | Mapping | Literal['same'] | None = 'same',
                 tau: float | None = None, tau_val: float | Literal['same'] | None = 'same',
                 train_mode: str = 'mask', val_mode: str = 'gather', gather: str = 'auto',
                 keep_prefix: bool = True, bias_init: Literal['normal', 'zeros', 'tiny'] = 'normal',
                 use_valid_mask: bool = False, frozen_stages: int = -1, with_cp: bool = False,
                 drop_path_rate: float = 0.0, pretrained: bool = False,
                 model_args: dict | None = None, init_cfg: dict | list | None = None):
        if bias_init not in ('normal', 'zeros', 'tiny'):
            raise ValueError(f"bias_init={bias_init!r} must be 'normal', 'zeros' or 'tiny'")
        vit = create(model_name, patch_size, img_size, drop_path_rate, pretrained,
                     model_args or {})
        depth, stride = len(vit.blocks), vit.patch_embed.feat_ratio()  # with that of a stem
        super().__init__(depth, stride, out_indices, out_type, frozen_stages, with_cp, init_cfg)
        self.model_name = model_name
        self.num_prefix_tokens = getattr(vit, 'num_prefix_tokens', 0)
        if out_type == 'cls_token' and getattr(vit, 'cls_token', None) is None:
            raise ValueError(f"{model_name} has no class token: use out_type='avg_featmap'")
        self.takes_mask = 'attn_mask' in inspect.signature(vit.forward_intermediates).parameters
        if use_valid_mask and not self.takes_mask:
            raise ValueError(f'{model_name}: the forward pass of {type(vit).__name__} takes no '
                             'attention mask: use_valid_mask=False')
        self.use_valid_mask = use_valid_mask

        last = max(self.out_indices)
        final_norm = out_type != 'featmap' if final_norm is None else final_norm
        vit.prune_intermediate_layers(
            list(self.out_indices), prune_norm=not final_norm, prune_head=True)
        self.vit = vit
        self.final_norm = final_norm
        if isinstance(getattr(vit, 'fc_norm', None), nn.Module):
            vit.fc_norm = nn.Identity()
        if with_cp:
            vit.set_grad_checkpointing(True)
        self.embed_dim = vit.embed_dim
        self.img_size = tuple(vit.patch_embed.img_size or (224, 224))
        if key_bias:
            prune_attention(vit, None, keep_prefix, train_mode, val_mode, gather)
        for layer in self.pruned_layers():
            if bias_init != 'tiny':
                layer.bias_init = bias_init
                layer.reset_key_bias()
        training, validation = resolve_rules(keep_ratio, keep_ratio_val, tau, tau_val, depth)
        self.set_rules(training[:last + 1], val=False)
        self.set_rules(validation[:last + 1], train=False)
        self.layer_ids = group_parameters(vit, vit.group_matcher(coarse=False), reverse=True)
        self.freeze()

    @property
    def blocks(self) -> nn.Module:
        return self.vit.blocks

    def pruned_layers(self) -> list[BiasedAttention]:
        return [module for module in self.vit.modules() if isinstance(module, BiasedAttention)]

    # ------------------------------------------------------------------ live settings
    def set_keep_ratio(self, value: float | Sequence | Mapping | None, train: bool = True,
                       val: bool = True) -> None:
        """Change what is kept, in any form that ``keep_ratio`` has."""
        self.set_rules(keep_rules(value, None, self.depth), train, val)

    def set_tau(self, value: float | None, train: bool = True, val: bool = True) -> None:
        """Change to a probability threshold; None is dense."""
        self.set_rules(keep_rules(None, value, self.depth), train, val)

    def set_gather(self, value: Literal['auto', 'before', 'after']) -> None:
        """Where kept columns are gathered; 'after' the projection is what the paper counts."""
        for layer in self.pruned_layers():
            layer.configure(gather=value)

    def set_rules(self, rules: Sequence[KeepRule], train: bool = True, val: bool = True) -> None:
        """One rule a block; blocks whose attention has windows have no layer to prune."""
        if any(rule != KeepRule() for rule in rules) and not self.pruned_layers():
            raise ValueError('columns are chosen by the key bias: pruning needs key_bias=True')
        for block, rule in zip(self.blocks, rules, strict=False):
            for module in block.modules():
                if isinstance(module, BiasedAttention):
                    module.set_rule(rule, train, val)

    # ------------------------------------------------------------------ forward
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """x (B, 3 or 4, H, W) -> one output of ``out_type`` per entry of ``out_indices``."""
        if not len(x):
            raise ValueError(f'{self.model_name}: timm takes no batch without images')
        x, hw, valid = self.split_input(x)
        options = {}
        if self.use_valid_mask and valid is not None:
            seen = F.pad(valid, (self.num_prefix_tokens, 0), value=True)
            options['attn_mask'] = seen[:, None, None]
        if self.out_type != 'featmap' and self.num_prefix_tokens:
            options['return_prefix_tokens'] = True
        try:
            found = self.vit.forward_intermediates(
                x, indices=list(self.out_indices), norm=self.final_norm, intermediates_only=True,
                **options)
        except (AssertionError, RuntimeError) as error:
            own = getattr(self.vit.patch_embed, 'img_size', None)
            if own is not None and tuple(x.shape[-2:]) != tuple(own) and not getattr(
                    self.vit, 'dynamic_img_size', False):
                raise ValueError(
                    f'{self.model_name} has positions for {tuple(own)} pixels alone, got '
                    f'{tuple(x.shape[-2:])}: set img_size to the size of the canvas') from error
            raise
        # timm gives them in the order of depth
        of_index = dict(zip(sorted(set(self.out_indices)), found, strict=True))
        return tuple(self.format_map(of_index[i], hw, valid) for i in self.out_indices)

    def format_map(self, found, hw: tuple[int, int], valid: Tensor | None) -> Tensor:
        """A map (B, C, h, w), or (map, prefix tokens), to ``out_type``."""
        feature, prefix = found if isinstance(found, tuple) else (found, None)
        if self.out_type == 'featmap':
            if self.use_valid_mask and valid is not None:  # necks know padding by it
                feature = feature * valid.unflatten(1, hw)[:, None]
            return feature.contiguous()
        if self.out_type == 'cls_token':
            return prefix[:, 0]
        tokens = feature.flatten(2).transpose(1, 2)
        if self.out_type == 'raw' and prefix is not None:
            return torch.cat([prefix, tokens], 1)
        return self.format_output(tokens, hw, valid if self.use_valid_mask else None)

    def forward_intermediates(
            self, x: Tensor, layers: Iterable[int] | None = None) -> dict[int, dict[str, Tensor]]:
        """See ``TokenBackbone``; of the blocks whose attention can be pruned."""
        layers = resolve_indices(layers, len(self.blocks))
        found, handles = {}, []
        for i in layers:
            for module in self.blocks[i].modules():
                if isinstance(module, BiasedAttention):
                    handles.append(module.register_forward_pre_hook(
                        lambda layer, args, kwargs, i=i: found.setdefault(i, {}).update(
                            layer.forward_intermediates(*args, **kwargs)[1]), with_kwargs=True))
            handles.append(self.blocks[i].register_forward_hook(
                lambda block, args, out, i=i: found.setdefault(i, {}).update(
                    x_in=tokens_of(args[0]), x_out=tokens_of(out))))
        try:
            self(x)
        finally:
            for handle in handles:
                handle.remove()
        return {i: found[i] for i in layers}

    # ------------------------------------------------------------------ freezing, optimizer
    def frozen_parts(self) -> list[nn.Module | nn.Parameter]:
        if self.frozen_stages < 0:
            return []
        after = {'blocks', *(() if self.frozen_stages == self.depth else ('norm', 'neck'))}
        parts = [part for name, part in self.vit.named_children() if name not in after]
        parts += [part for _, part in self.vit.named_parameters(recurse=False)]
        return parts + list(self.blocks[:self.frozen_stages])

    def no_weight_decay(self) -> set[str]:
        return {f'vit.{name}' for name in self.vit.no_weight_decay()}

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """timm's ``group_matcher``: embedding 0, block i -> i + 1, everything else depth + 1."""
        num_layers = self.depth + 2
        name = param_name.removeprefix(prefix).removeprefix('vit.')
        found = self.layer_ids.get(name) if param_name.startswith(prefix) else None
        return num_layers - 1 if found is None else min(found, num_layers - 1), num_layers

    # ------------------------------------------------------------------ checkpoints
    def load_pretrained(self, checkpoint: str, prefix: str = '') -> LoadReport:
        """Load a file by value and log one line about it.

        Raises:
            ValueError: the file is of another family, or a shape cannot be fitted; nothing is
                loaded.
        """
        state = read_state_dict(checkpoint, prefix)
        state = cut_prefix(state, 'backbone.vit.') or cut_prefix(state, 'vit.') or state
        biases = {name: value for name, value in state.items() if '.key_bias.' in name}
        family = sys.modules[type(self.vit).__module__]
        try:
            state = {**family.checkpoint_filter_fn(dict(state), self.vit), **biases}
        except Exception as error:  # timm's filters fail in their own ways on foreign names
            raise ValueError(f'{checkpoint} cannot be read as a checkpoint of {self.model_name} '
                             f'({type(error).__name__}: {error})') from error
        names = {f'vit.{name}': value for name, value in state.items()}
        return load_by_name(self, names, checkpoint, f'{type(self).__name__} {self.model_name}',
                            MAY_BE_NEW.fullmatch, self.may_be_dropped)

    def may_be_dropped(self, name: str) -> bool:
        """Heads, and blocks behind the last output."""
        block = re.match(r'vit\.blocks\.(\d+)\.', name)
        if block:
            return len(self.blocks) <= int(block[1]) < self.depth
        return bool(MAY_BE_DROPPED.fullmatch(name))


def tokens_of(x: Tensor) -> Tensor:
    """(B, N, C), also of a grid (B, h, w, C)."""
    return x.flatten(1, 2) if x.dim() == 4 else x


def create(model_name: str, patch_size, img_size, drop_path_rate: float, pretrained: bool,
           model_args: dict) -> nn.Module:
    """timm's model without head, for any input size where the family can."""
    if not timm.is_model(model_name.split('.')[0]):
        near = difflib.get_close_matches(model_name, timm.list_models(), n=3)
        raise ValueError(f'model_name={model_name!r} is unknown to timm {timm.__version__}'
                         + (f'; near are {", ".join(near)}' if near else ''))
    options = dict(model_args, drop_path_rate=drop_path_rate, num_classes=0)
    if patch_size is not None:
        options['patch_size'] = patch_size
    if img_size is not None:
        options['img_size'] = img_size if isinstance(img_size, int) else tuple(img_size)
    try:
        vit = timm.create_model(model_name, pretrained, dynamic_img_size=True, **options)
    except TypeError as error:
        if 'dynamic_img_size' not in str(error):
            raise ValueError(f'{model_name}: {error}') from error
        vit = timm.create_model(model_name, pretrained, **options)
    if not hasattr(vit, 'blocks') or not hasattr(vit, 'forward_intermediates'):
        raise ValueError(f'{model_name} ({type(vit).__name__}) is no plain vision transformer: '
                         'it has no blocks of one width')
    return vit
