"""DMST and ToST: XCiT without its local interaction, around token-statistics attention.

Sources: ToST (arXiv 2412.17810, official RobinWu218/ToST tost_vision/tost.py), DMSA / DMST
(arXiv 2601.17042), on timm's XCiT parts. Parameter names are the official ToST ones
(``pos_embeder``, ``blocks.i.attn.{qkv,temp,to_out.0}``, ``cls_attn_blocks.i.attn.qkv``); new is
``blocks.i.attn.membership``. Kept from the official code: drop path constant over depth, none in
the class-attention blocks, and patch tokens doubled there. Differences: the stem has plain batch
norm unless several GPUs train together, the classifier is no part of the backbone, and a valid mask
keeps padding out.

Symbols: B images, grid h x w, N = h * w tokens, C channels.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from timm.layers import DropPath, Mlp, trunc_normal_
from timm.models import xcit
from torch import Tensor, nn

from mmext.checkpoints.report import LoadReport
from mmext.checkpoints.tost import load_tost
from mmext.layers.dmsa import DMSA
from mmext.layers.gated_mhsa import GatedMHSA
from mmext.layers.inference import (
    add_scaled,
    conv_norm,
    gelu_,
    is_conv_norm,
    is_gelu,
    records_nothing,
    run_mlp,
)
from mmext.layers.mssa import MSSA
from mmext.layers.tssa import TSSA
from mmext.models.backbones.base import (
    BlockPass,
    TokenBackbone,
    check_drop_path,
    resolve_arch,
    resolve_indices,
)
from mmext.registry import MODELS

ARCHS = {  # aliases: embed_dim, depth, num_heads, eta
    ('tiny', 'tiny-12', 't'): dict(embed_dim=192, depth=12, num_heads=4, eta=1.0),
    ('small', 'small-12', 's'): dict(embed_dim=384, depth=12, num_heads=8, eta=1.0),
    ('medium', 'medium-24', 'm'): dict(embed_dim=512, depth=24, num_heads=8, eta=1e-5),
    ('tiny-24',): dict(embed_dim=192, depth=24, num_heads=4, eta=1e-5),
    ('small-24',): dict(embed_dim=384, depth=24, num_heads=8, eta=1e-5),
    ('large', 'large-24', 'l'): dict(embed_dim=768, depth=24, num_heads=16, eta=1e-5),
    ('tiny-test',): dict(embed_dim=32, depth=2, num_heads=4, eta=1.0),
}
ARCH_KEYS = {'embed_dim', 'depth', 'num_heads', 'eta', 'mlp_ratio', 'patch_size'}

for layer in (DMSA, TSSA, MSSA, GatedMHSA):
    MODELS.register_module(module=layer)
ATTENTIONS = {  # short for the entries of the registry
    'dmsa': dict(type='mmext.DMSA'),
    'tssa': dict(type='mmext.TSSA'),
    'mssa': dict(type='mmext.MSSA'),
    'mhsa': dict(type='mmext.GatedMHSA', gate='none'),
    'gated': dict(type='mmext.GatedMHSA'),
}


class FourierPosition(xcit.PositionalEncodingFourier):
    """Fourier features of the position in the image's extent, projected to C channels."""

    def forward(self, hw: tuple[int, int], valid: Tensor | None = None) -> Tensor:
        """Grid (h, w), valid (B, N) or None -> (B or 1, N, C).

        Coordinates run over (0, 2 pi] within the valid tokens of each row and column.
        """
        weight = self.token_projection.weight
        if valid is None:
            valid = torch.ones(1, hw[0] * hw[1], dtype=torch.bool, device=weight.device)
        grid = valid.unflatten(1, hw).float()
        freqs = self.temperature**(
            -2 * (torch.arange(self.hidden_dim, device=weight.device) // 2) / self.hidden_dim)
        features = []
        for axis in (1, 2):
            coord = grid.cumsum(axis)
            extent = coord.amax(axis, keepdim=True) + self.eps
            angle = (coord / extent * self.scale)[..., None] * freqs
            waves = torch.stack([angle[..., 0::2].sin(), angle[..., 1::2].cos()], -1)
            features.append(waves.flatten(3))
        features = torch.cat(features, -1).permute(0, 3, 1, 2).to(weight.dtype)
        return self.token_projection(features).flatten(2).transpose(1, 2)


class Block(nn.Module):
    """Pre-norm block with LayerScale: attention, then MLP."""

    def __init__(self, dim: int, attn: nn.Module, eta: float, mlp_ratio: float = 4.,
                 proj_drop: float = 0., drop_path: float = 0., norm_layer=nn.LayerNorm):
        super().__init__()
        self.norm1 = norm_layer(dim)
        self.attn = attn
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()
        self.norm2 = norm_layer(dim)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), drop=proj_drop)
        self.gamma1 = nn.Parameter(torch.full((dim,), float(eta)))
        self.gamma2 = nn.Parameter(torch.full((dim,), float(eta)))

    def forward(self, x: Tensor, hw: tuple[int, int], valid: Tensor | None = None) -> Tensor:
        """x (B, N, C), grid hw, valid (B, N) -> (B, N, C)."""
        x = add_scaled(x, self.gamma1, self.drop_path(self.attn(self.norm1(x), hw, valid)))
        return add_scaled(x, self.gamma2, self.drop_path(run_mlp(self.mlp, self.norm2(x))))

    def forward_intermediates(self, x: Tensor, hw: tuple[int, int], valid: Tensor | None = None
                              ) -> dict[str, Tensor]:
        """What the attention layer tells of the tokens that this block gets."""
        return self.attn.forward_intermediates(self.norm1(x), hw, valid)[1]


class ClassAttention(nn.Module):
    """The class token (first) attends to all tokens; one projection for q, k, v as in XCiT.

    timm's ``ClassAttn`` has three, which official files do not fit.
    """

    def __init__(self, dim: int, num_heads: int, qkv_bias: bool = True, attn_drop: float = 0.,
                 proj_drop: float = 0.):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """x (B, 1 + N, C), valid (B, 1 + N) -> (B, 1, C)."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        mask = None if valid is None else valid[:, None, None]
        dropout = self.attn_drop.p if self.training else 0.
        y = F.scaled_dot_product_attention(q[:, :, :1], k, v, attn_mask=mask, dropout_p=dropout)
        return self.proj_drop(self.proj(y.transpose(1, 2).flatten(2)))


class ClassAttentionBlock(xcit.ClassAttentionBlock):
    """timm's block with the official parameter names and a valid mask."""

    def __init__(self, dim: int, num_heads: int, **kwargs):
        super().__init__(dim, num_heads, tokens_norm=True, **kwargs)
        self.attn = ClassAttention(
            dim, num_heads, **{key: value for key, value in kwargs.items()
                               if key in ('qkv_bias', 'attn_drop', 'proj_drop')})

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """x (B, 1 + N, C) -> the same shape; patch tokens come out doubled, as in XCiT."""
        y = self.norm1(x)
        x = self.norm2(x + self.gamma1 * torch.cat([self.attn(y, valid), y[:, 1:]], 1))
        return x + torch.cat([self.gamma2 * self.mlp(x[:, :1]), x[:, 1:]], 1)


@MODELS.register_module()
class DMST(TokenBackbone):
    """XCiT-shaped backbone with a choice of attention; DMSA by default.

    With the mask channel (see ``TokenBackbone``) padding stays out of the token statistics, out of
    the positions' extent, and is zeroed after each convolution of the stem, so that in evaluation
    an image has the same features on any canvas. In training the stem's batch norm does see the
    (zeroed) padding.

    Args:
        arch: 'tiny', 'small', 'medium', 'tiny-24', 'small-24', 'large' (aliases in ARCHS; official
            names such as 'tost_cab_tiny_12_p16' too), or a dict of embed_dim (divisible by 8),
            depth, num_heads and, optionally, eta (LayerScale start, default 1), mlp_ratio and
            patch_size.
        patch_size: 16 or 8; an official name or a dict ``arch`` may hold it instead.
        attn: the attention layer, ``dict(type='mmext.DMSA', gate_act='sigmoid')`` or any class
            registered with timm's constructor and the call of ``mmext.layers``; 'dmsa', 'tssa',
            'mssa', 'mhsa' and 'gated' are short for those of mmext.
        out_indices, out_type, frozen_stages, with_cp, init_cfg: see ``TokenBackbone``. 'cls_token'
            comes from the class-attention tail, which only this output has, hence from the last
            block only. ``init_cfg=dict(type='Pretrained', ...)`` takes official ToST files.
        final_norm: layer norm of the last output; None applies it unless ``out_type`` is
            'featmap'. Where it is not applied it does not exist.
        cls_attn_layers: blocks of the class-attention tail.
        use_pos: Fourier positions.
        qkv_bias: bias of the input projections; None: the layer's default (yes, but for MSSA, as
            in CRATE) and yes in the class-attention blocks.
        drop_path_rate: stochastic depth, the same in every block.
        drop_rate, attn_drop_rate: dropout of projections and embedding, and of attention.

    Raises:
        ValueError: an option is unknown or does not fit another.
    """

    stem_names = ('patch_embed', 'pos_embeder', 'pos_drop', 'cls_token')

    def __init__(self, arch: str | dict = 'tiny', patch_size: int | None = None,
                 attn: str | dict = 'dmsa',
                 out_indices: int | Sequence[int] = -1, out_type: str = 'cls_token',
                 final_norm: bool | None = None, cls_attn_layers: int = 2, use_pos: bool = True,
                 qkv_bias: bool | None = None, drop_path_rate: float = 0., drop_rate: float = 0.,
                 attn_drop_rate: float = 0., frozen_stages: int = -1, with_cp: bool = False,
                 init_cfg: dict | list | None = None):
        spec = resolve_official(arch)
        patch_size = spec.get('patch_size', 16) if patch_size is None else patch_size
        super().__init__(spec['depth'], patch_size, out_indices, out_type, frozen_stages, with_cp,
                         init_cfg)
        check_drop_path(drop_path_rate)
        dim, heads = spec['embed_dim'], spec['num_heads']
        eta = spec.get('eta', 1.0)
        self.has_tail = out_type == 'cls_token'
        if self.has_tail:  # the norm belongs to the class-attention blocks, which are not frozen
            self.norm_names = ()
        self._check(dim, cls_attn_layers)
        self.embed_dim = dim
        self.attn = resolve_attention(attn)
        norm_layer = partial(nn.LayerNorm, eps=1e-6)

        self.patch_embed = sync_across_gpus(
            xcit.ConvPatchEmbed(patch_size=patch_size, embed_dim=dim))
        self.pos_embeder = FourierPosition(dim=dim) if use_pos else None
        self.pos_drop = nn.Dropout(drop_rate)
        options = dict(dim=dim, num_heads=heads, attn_drop=attn_drop_rate, proj_drop=drop_rate)
        if qkv_bias is not None:
            options['qkv_bias'] = qkv_bias
        last = max(self.out_indices)  # later blocks would have no gradient
        self.blocks = nn.ModuleList(
            Block(dim, MODELS.build(options | self.attn), eta,
                  spec.get('mlp_ratio', 4.), drop_rate, drop_path_rate, norm_layer)
            for _ in range(last + 1))
        if self.has_tail:
            self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
            self.cls_attn_blocks = nn.ModuleList(
                ClassAttentionBlock(
                    dim, heads, mlp_ratio=spec.get('mlp_ratio', 4.), eta=eta,
                    norm_layer=norm_layer, qkv_bias=qkv_bias is not False,
                    attn_drop=attn_drop_rate, proj_drop=drop_rate)
                for _ in range(cls_attn_layers))
        final_norm = out_type != 'featmap' if final_norm is None else final_norm
        self.norm = norm_layer(dim) if final_norm and last == self.depth - 1 else nn.Identity()
        self._start_values()
        self.freeze()

    def _check(self, dim, cls_attn_layers):
        if self.patch_size not in (8, 16):
            raise ValueError(f'patch_size={self.patch_size}: the convolutional stem has 8 or 16')
        if dim % 8:
            raise ValueError(f'embed_dim={dim} must be divisible by 8, the stem halves it thrice')
        if self.has_tail and (self.out_indices != (self.depth - 1,) or cls_attn_layers < 1):
            raise ValueError(
                f"out_type='cls_token' comes from the class-attention blocks behind the last "
                f'block: out_indices must be -1 and cls_attn_layers at least 1, got '
                f"{self.out_indices} and {cls_attn_layers}; use 'avg_featmap' otherwise")

    def _start_values(self):
        for module in self.modules():
            if isinstance(module, nn.Linear):
                trunc_normal_(module.weight, std=.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        if self.has_tail:
            trunc_normal_(self.cls_token, std=.02)

    # ------------------------------------------------------------------ forward
    def embed(self, x: Tensor) -> tuple[Tensor, tuple[int, int], Tensor | None]:
        """Images (B, 3 or 4, H, W) -> tokens (B, N, C), grid, valid (B, N) or None.

        Any size goes in as it is, as into the official stem: its convolutions of stride 2 round up.
        """
        mask = x[:, 3:] > 0 if x.shape[1] == 4 else None
        image, hw, valid = self.split_input(x, pad=False)
        x = run_stem(self.patch_embed.proj, image, mask)
        x = x.flatten(2).transpose(1, 2).contiguous()  # else every norm of the network copies
        if self.pos_embeder is not None:
            x = x + self.pos_embeder(hw, valid)
        return self.pos_drop(x), hw, valid

    def passes(self, x: Tensor, layers: Sequence[int] = (), stop: int | None = None
               ) -> Iterator[BlockPass]:
        """Run the blocks up to ``stop``, with the intermediates of those in ``layers``."""
        x, hw, valid = self.embed(x)
        for i, block in enumerate(self.blocks[:stop]):
            before = x
            extras = block.forward_intermediates(x, hw, valid) if i in layers else None
            x = self.run_block(block, x, hw, valid)
            yield BlockPass(i, before, x, hw, valid, extras)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """x (B, 3 or 4, H, W) -> one output of ``out_type`` per entry of ``out_indices``."""
        outputs = {}
        for step in self.passes(x):
            if step.index not in self.out_indices:
                continue
            y = self.class_tail(step.x_out, step.valid) if self.has_tail else step.x_out
            y = self.norm(y) if step.index == self.depth - 1 else y
            outputs[step.index] = self.format_output(y, step.hw, step.valid)
        return tuple(outputs[i] for i in self.out_indices)

    def class_tail(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """Patch tokens (B, N, C) -> (B, 1 + N, C), class token first."""
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], 1)
        if valid is not None:
            valid = F.pad(valid, (1, 0), value=True)
        for block in self.cls_attn_blocks:
            x = self.run_block(block, x, valid)
        return x

    def forward_intermediates(
            self, x: Tensor, layers: Iterable[int] | None = None) -> dict[int, dict[str, Tensor]]:
        """See ``TokenBackbone``; the class-attention tail has none."""
        layers = resolve_indices(layers, len(self.blocks))
        return {step.index: dict(step.intermediates, x_in=step.x_in, x_out=step.x_out)
                for step in self.passes(x, layers, max(layers) + 1) if step.index in layers}

    # ------------------------------------------------------------------ optimizer, checkpoints
    def no_weight_decay(self) -> set[str]:
        return {name for name, _ in self.named_parameters()
                if name == 'cls_token' or name.endswith('.temp')}

    def load_pretrained(self, checkpoint: str, prefix: str = '') -> LoadReport:
        """Load an official ToST or mmext file by value; see ``mmext.checkpoints.tost``."""
        return load_tost(self, checkpoint, prefix)


@MODELS.register_module()
class ToST(DMST):
    """``DMST`` with token-statistics attention: the published ToST."""

    def __init__(self, *args, attn: str | dict = 'tssa', **kwargs):
        super().__init__(*args, attn=attn, **kwargs)


def resolve_attention(attn: str | dict) -> dict:
    """The registry entry of an attention layer, by its short name or as it is."""
    if isinstance(attn, dict):
        return dict(attn)
    if attn not in ATTENTIONS:
        raise ValueError(f'attn={attn!r} is unknown, choose one of {tuple(ATTENTIONS)} or give '
                         "dict(type='...')")
    return ATTENTIONS[attn]


def run_stem(proj: nn.Sequential, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """The stem, with padding at zero before every convolution, as at the image's own border.

    Without gradients each batch norm is part of its convolution, and GELU works in place.
    x (B, 3, H, W), mask (B, 1, H, W) bool or None -> (B, C, h, w).
    """
    free, own = records_nothing(), False
    if free and x.device.type == 'cpu':  # convolutions then copy nothing into their own layout
        x = x.contiguous(memory_format=torch.channels_last)
    if mask is not None:
        mask = mask.to(x.dtype)
        x = x * mask
    for layer in proj:
        if free and is_conv_norm(layer):
            x, own = conv_norm(layer, x), True
        elif own and is_gelu(layer):
            x = gelu_(x)
        else:
            x, own = layer(x), False
        if mask is not None and isinstance(layer, nn.Sequential):  # stride 2, norm: not GELU(0) = 0
            mask = F.max_pool2d(mask, 2, ceil_mode=True)  # 2 i of the old grid is i of the new
            x = x * mask
    return x


def sync_across_gpus(module: nn.Module) -> nn.Module:
    """Batch norm shared by all processes where several GPUs train, plain elsewhere."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    if distributed and torch.distributed.get_world_size() > 1 and torch.cuda.is_available():
        return nn.SyncBatchNorm.convert_sync_batchnorm(module)
    return module


def resolve_official(arch: str | dict) -> dict:
    """``resolve_arch`` that also reads official names, 'tost_cab_<size>_p<patch size>'."""
    patch = None
    if isinstance(arch, str):
        name = arch.lower().replace('_', '-')
        name = name.removeprefix('tost-').removeprefix('dmst-').removeprefix('cab-')
        patch = re.search(r'-p(8|16)$', name)
        name = name[:patch.start() if patch else None]
        arch = name if any(name in names for names in ARCHS) else arch  # errors name the given one
    spec = resolve_arch(arch, ARCHS, ARCH_KEYS)
    return spec | (dict(patch_size=int(patch[1])) if patch else {})
