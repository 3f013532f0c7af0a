"""Importing this module registers mmext's models with timm.

    import timm, mmext.timm_models
    model = timm.create_model('deit_small_bias_patch16_224', keep_ratio=(0.9, 0.1))
    maps = timm.create_model('dmst_tiny_patch16_224', features_only=True)(images)

Bias-pruned ViTs are timm's ``VisionTransformer`` (all of its options, plus ``keep_ratio``) with the
attention of ``mmext.layers``; ``pretrained=True`` fetches the official DeiT and MAE
weights, the key bias starts at random. DMST and ToST are ``mmext.models.DMST`` with a classifier;
weights are not published. Parameter names are those of ``BiasPrunedViT``, ``DMST`` and the official
files.
"""

from collections.abc import Mapping, Sequence

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import trunc_normal_
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models._features import feature_take_indices
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn
from torch import Tensor, nn

from mmext.layers.biased_attention import BiasedAttention, with_options
from mmext.models.backbones.dmst import DMST
from mmext.pruning import pruned_layers, set_keep_ratio

DEIT = 'https://dl.fbaipublicfiles.com/deit/'
MAE = 'https://dl.fbaipublicfiles.com/mae/finetune/mae_finetuned_vit_large.pth'


def _cfg(url: str = '', **kwargs) -> dict:
    return dict(
        url=url, num_classes=1000, input_size=(3, 224, 224), pool_size=None, crop_pct=0.9,
        interpolation='bicubic', mean=IMAGENET_DEFAULT_MEAN, std=IMAGENET_DEFAULT_STD,
        classifier='head', license='apache-2.0', **kwargs)


VIT = dict(first_conv='patch_embed.proj', fixed_input_size=True)
TOST = dict(first_conv='patch_embed.proj.0.0')
default_cfgs = generate_default_cfgs({
    'deit_tiny_bias_patch16_224.fb_in1k': _cfg(
        DEIT + 'deit_tiny_patch16_224-a1311bcf.pth', **VIT),
    'deit_small_bias_patch16_224.fb_in1k': _cfg(
        DEIT + 'deit_small_patch16_224-cd65a155.pth', **VIT),
    'deit_base_bias_patch16_224.fb_in1k': _cfg(
        DEIT + 'deit_base_patch16_224-b5f2ef4d.pth', **VIT),
    'vit_large_bias_patch16_224.mae_ft_in1k': _cfg(MAE, **VIT),
    **{f'{family}_{size}_patch16_224.untrained': {**_cfg(**TOST), 'crop_pct': 1.0}
       for family in ('dmst', 'tost') for size in ('tiny', 'small', 'medium')},
})


class BiasVisionTransformer(VisionTransformer):
    """timm's ViT with bias-pruned attention.

    Args:
        keep_ratio: None (dense), a number, (r0, r1) for the linear schedule over depth, or one
            entry a block.
        keep_prefix: class token and registers are always kept, within k (our choice, the paper is
            silent).
        key_bias_std: of the key bias's start values; 0 leaves pre-trained outputs unchanged while
            nothing is pruned.
        kwargs: of ``VisionTransformer``.
    """

    def __init__(self, *args, keep_ratio: float | Sequence | Mapping | None = None,
                 keep_prefix: bool = True, key_bias_std: float = 0.02, **kwargs):
        if key_bias_std < 0:
            raise ValueError(f'key_bias_std={key_bias_std} must not be negative')
        super().__init__(*args, attn_layer=with_options(BiasedAttention), **kwargs)
        for layer in pruned_layers(self):
            layer.configure(keep_prefix=keep_prefix, num_prefix_tokens=self.num_prefix_tokens)
            if key_bias_std:
                trunc_normal_(layer.key_bias.weight, std=key_bias_std)
            else:
                nn.init.zeros_(layer.key_bias.weight)
        self.set_keep_ratio(keep_ratio)

    def set_keep_ratio(self, value: float | Sequence | Mapping | None, train: bool = True,
                       val: bool = True) -> None:
        """See ``mmext.pruning.set_keep_ratio``."""
        set_keep_ratio(self, value, train, val)


def _keep_own_bias(state_dict: dict, model: nn.Module) -> dict:
    """timm's filter; a file without key biases leaves the model's own ones."""
    state_dict = checkpoint_filter_fn(state_dict, model)
    own = {name: value for name, value in model.state_dict().items() if '.key_bias.' in name}
    return {**own, **state_dict}


def _bias_vit(variant: str, pretrained: bool, **kwargs) -> BiasVisionTransformer:
    return build_model_with_cfg(
        BiasVisionTransformer, variant, pretrained, pretrained_filter_fn=_keep_own_bias,
        feature_cfg=dict(out_indices=3, feature_cls='getter'), **kwargs)


class TokenStatisticsTransformer(DMST):
    """``DMST`` with a classifier and timm's methods; ``forward_intermediates`` is timm's here.

    Args:
        arch: see ``DMST``.
        num_classes: 0 for none.
        global_pool: 'token' (class token), 'avg' (mean of the patch tokens) or '' (all tokens).
        img_size: for timm's sake; any size goes in.
        kwargs: of ``DMST``.
    """

    def __init__(self, arch: str | dict = 'tiny', num_classes: int = 1000,
                 global_pool: str = 'token', in_chans: int = 3,
                 img_size: int | tuple[int, int] = 224, **kwargs):
        if in_chans != 3:
            raise ValueError(f'in_chans={in_chans}: the stem has 3, a fourth is a mask')
        super().__init__(arch, out_type='cls_token', **kwargs)
        self.num_features = self.head_hidden_size = self.embed_dim
        self.feature_info = [
            dict(module=f'blocks.{i}', num_chs=self.embed_dim, reduction=self.patch_size)
            for i in range(self.depth)]
        self.reset_classifier(num_classes, global_pool)

    def get_classifier(self) -> nn.Module:
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        if global_pool is not None:
            if global_pool not in ('token', 'avg', ''):
                raise ValueError(f"global_pool={global_pool!r} must be 'token', 'avg' or ''")
            self.global_pool = global_pool
        self.num_classes = num_classes
        self.head = nn.Identity()
        if num_classes:
            # on the device and in the dtype of the rest
            self.head = nn.Linear(self.embed_dim, num_classes).to(self.cls_token)
            trunc_normal_(self.head.weight, std=0.02)
            nn.init.zeros_(self.head.bias)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.with_cp = enable

    def group_matcher(self, coarse: bool = False) -> dict:
        return dict(
            stem=r'^cls_token|^pos_embeder|^patch_embed', blocks=r'^blocks\.(\d+)',
            cls_attn_blocks=[(r'^cls_attn_blocks\.(\d+)', None), (r'^norm', (99999,))])

    def forward_features(self, x: Tensor) -> Tensor:
        """Images (B, 3, H, W) -> normalized tokens (B, 1 + N, C), class token first."""
        *_, last = self.passes(x)
        return self.norm(self.class_tail(last.x_out, last.valid))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        if self.global_pool:
            x = x[:, 0] if self.global_pool == 'token' else x[:, 1:].mean(1)
        return x if pre_logits else self.head(x)

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, 3, H, W) -> scores (B, classes)."""
        return self.forward_head(self.forward_features(x))

    def forward_intermediates(
            self, x: Tensor, indices: int | list[int] | None = None, norm: bool = False,
            stop_early: bool = False, output_fmt: str = 'NCHW', intermediates_only: bool = False):
        """Patch tokens after chosen blocks, before the class-attention blocks.

        Args:
            indices: the last n blocks, those listed, or, with None, all.
            norm: through the final norm.
            output_fmt: 'NCHW' maps or 'NLC' tokens.

        Returns:
            the list alone with ``intermediates_only``, else (tokens of ``forward_features``, list).
        """
        if output_fmt not in ('NCHW', 'NLC'):
            raise ValueError(f"output_fmt={output_fmt!r} must be 'NCHW' or 'NLC'")
        take, last = feature_take_indices(len(self.blocks), indices)
        found = []
        for step in self.passes(x):
            if step.index in take:
                tokens = self.norm(step.x_out) if norm else step.x_out
                found.append(tokens if output_fmt == 'NLC' else tokens.transpose(1, 2).reshape(
                    tokens.shape[0], -1, *step.hw).contiguous())
            if step.index == last and intermediates_only:
                return found
        return found if intermediates_only else (
            self.norm(self.class_tail(step.x_out, step.valid)), found)

    def prune_intermediate_layers(self, indices: int | list[int] = 1, prune_norm: bool = False,
                                  prune_head: bool = True) -> list[int]:
        """Drop what the features of ``indices`` do not need."""
        take, last = feature_take_indices(len(self.blocks), indices)
        self.blocks = self.blocks[:last + 1]
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.cls_attn_blocks = nn.ModuleList()
            self.reset_classifier(0, '')
        return take


def _tost(variant: str, pretrained: bool, **kwargs) -> TokenStatisticsTransformer:
    return build_model_with_cfg(
        TokenStatisticsTransformer, variant, pretrained,
        feature_cfg=dict(out_indices=3, feature_cls='getter'), **kwargs)


@register_model
def deit_tiny_bias_patch16_224(pretrained: bool = False, **kwargs) -> BiasVisionTransformer:
    """DeiT-Ti with key bias: 192 channels, 12 blocks, 3 heads."""
    args = dict(patch_size=16, embed_dim=192, depth=12, num_heads=3)
    return _bias_vit('deit_tiny_bias_patch16_224', pretrained, **dict(args, **kwargs))


@register_model
def deit_small_bias_patch16_224(pretrained: bool = False, **kwargs) -> BiasVisionTransformer:
    """DeiT-S with key bias: 384 channels, 12 blocks, 6 heads."""
    args = dict(patch_size=16, embed_dim=384, depth=12, num_heads=6)
    return _bias_vit('deit_small_bias_patch16_224', pretrained, **dict(args, **kwargs))


@register_model
def deit_base_bias_patch16_224(pretrained: bool = False, **kwargs) -> BiasVisionTransformer:
    """DeiT-B with key bias: 768 channels, 12 blocks, 12 heads."""
    args = dict(patch_size=16, embed_dim=768, depth=12, num_heads=12)
    return _bias_vit('deit_base_bias_patch16_224', pretrained, **dict(args, **kwargs))


@register_model
def vit_large_bias_patch16_224(pretrained: bool = False, **kwargs) -> BiasVisionTransformer:
    """ViT-L as fine-tuned by MAE, with key bias: mean of the patch tokens, then a norm."""
    args = dict(patch_size=16, embed_dim=1024, depth=24, num_heads=16, global_pool='avg')
    return _bias_vit('vit_large_bias_patch16_224', pretrained, **dict(args, **kwargs))


@register_model
def dmst_tiny_patch16_224(pretrained: bool = False, **kwargs) -> TokenStatisticsTransformer:
    """DMST-T: 192 channels, 12 blocks, 4 heads."""
    return _tost('dmst_tiny_patch16_224', pretrained, **dict(arch='tiny', **kwargs))


@register_model
def dmst_small_patch16_224(pretrained: bool = False, **kwargs) -> TokenStatisticsTransformer:
    """DMST-S: 384 channels, 12 blocks, 8 heads."""
    return _tost('dmst_small_patch16_224', pretrained, **dict(arch='small', **kwargs))


@register_model
def dmst_medium_patch16_224(pretrained: bool = False, **kwargs) -> TokenStatisticsTransformer:
    """DMST-M: 512 channels, 24 blocks, 8 heads."""
    return _tost('dmst_medium_patch16_224', pretrained, **dict(arch='medium', **kwargs))


@register_model
def tost_tiny_patch16_224(pretrained: bool = False, **kwargs) -> TokenStatisticsTransformer:
    """ToST-T (official tost_cab_tiny_12_p16)."""
    return _tost('tost_tiny_patch16_224', pretrained, **dict(arch='tiny', attn='tssa', **kwargs))


@register_model
def tost_small_patch16_224(pretrained: bool = False, **kwargs) -> TokenStatisticsTransformer:
    """ToST-S (official tost_cab_small_12_p16)."""
    return _tost('tost_small_patch16_224', pretrained, **dict(arch='small', attn='tssa', **kwargs))


@register_model
def tost_medium_patch16_224(pretrained: bool = False, **kwargs) -> TokenStatisticsTransformer:
    """ToST-M (official tost_cab_medium_24_p16)."""
    return _tost('tost_medium_patch16_224', pretrained,
                 **dict(arch='medium', attn='tssa', **kwargs))
