"""timm's attention modules with a key bias and pruning by it, put on by a change of class.

For models that others built: ``adopt`` changes the class of a module in place and adds the
parameter ``key_bias``, ``release`` undoes it. Parameters, their names, hooks and references to the
module stay. Calls are those of timm (``attn_mask``, ``rope``, ...). Models of mmext hand their
layer to timm as ``attn_layer`` instead.

Symbols: B samples, N tokens (prefix tokens first), C channels, H heads, D head width.
"""

import timm.layers.attention
import timm.models.beit
import timm.models.eva
import timm.models.vision_transformer_sam
import torch
from timm.layers import apply_rot_embed_cat
from torch import Tensor, nn

from mmext.layers.biased_attention import ALL_COLUMNS, BiasedAttention, Heads, add
from mmext.layers.common import refuse, split_heads
from mmext.layers.relative_attention import relative_logits
from mmext.ops.column_selection import Columns


class RotaryBiasedAttention(BiasedAttention):
    """``timm.layers.AttentionRope`` and ``timm.models.eva.EvaAttention``: rotary positions."""

    def project(self, x: Tensor, columns: Columns = ALL_COLUMNS, hw: tuple[int, int] | None = None,
                attn_mask: Tensor | None = None, rope: Tensor | None = None) -> Heads:
        if self.qkv is None:
            q, k, v = (layer(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
                       for layer in (self.q_proj, self.k_proj, self.v_proj))
        else:
            q, k, v = split_heads(qkv_with_bias(self, x), 3 * self.num_heads).chunk(3, 1)
        q, k = self.q_norm(q), self.k_norm(k)
        if rope is not None:
            q, k = (self.rotate(part, rope).type_as(v) for part in (q, k))
        groups = q.shape[1] // k.shape[1]
        if groups > 1:  # grouped queries: pruning is per head, so every head gets its own copy
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        return Heads(q, k, v, attn_mask).gather(columns)

    def rotate(self, part: Tensor, rope: Tensor) -> Tensor:
        prefix, patches = part.tensor_split([self.num_prefix_tokens], 2)
        patches = apply_rot_embed_cat(patches, rope, half=getattr(self, 'rotate_half', False))
        return torch.cat([prefix, patches], 2)


class BeitBiasedAttention(BiasedAttention):
    """``timm.models.beit.Attention``: relative positions as a bias of the logits."""

    def project(self, x: Tensor, columns: Columns = ALL_COLUMNS, hw: tuple[int, int] | None = None,
                attn_mask: Tensor | None = None,
                shared_rel_pos_bias: Tensor | None = None) -> Heads:
        q, k, v = split_heads(qkv_with_bias(self, x), 3 * self.num_heads).chunk(3, 1)
        bias = add(attn_mask, shared_rel_pos_bias)
        if self.relative_position_bias_table is not None:
            bias = add(bias, self._get_rel_pos_bias())
        return Heads(self.q_norm(q), self.k_norm(k), v, bias).gather(columns)

    def _get_rel_pos_bias(self) -> Tensor:
        """(1, H, N, N): timm's table looked up at its index."""
        table = self.relative_position_bias_table[self.relative_position_index]
        return table.permute(2, 0, 1)[None]


class SamBiasedAttention(BiasedAttention):
    """``timm.models.vision_transformer_sam.Attention``: a grid of tokens, relative positions."""

    def forward(self, x: Tensor) -> Tensor:
        """x (B, h, w, C) -> (B, h, w, C)."""
        return super().forward(x.flatten(1, 2), x.shape[1:3]).unflatten(1, x.shape[1:3])

    def forward_intermediates(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """x (B, h, w, C); see ``BiasedAttention``."""
        out, extras = super().forward_intermediates(x.flatten(1, 2), x.shape[1:3])
        return out.unflatten(1, x.shape[1:3]), extras

    def project(self, x: Tensor, columns: Columns = ALL_COLUMNS, hw: tuple[int, int] | None = None,
                attn_mask: Tensor | None = None) -> Heads:
        refuse(self, rope=self.rope)
        heads = super().project(x, columns, attn_mask=attn_mask)
        if not self.use_rel_pos:
            return heads
        rel = relative_logits(heads.q, self.rel_pos_h, self.rel_pos_w, hw, columns)
        return heads._replace(logit_bias=add(rel, heads.logit_bias))


TIMM_ATTENTION: dict[type[nn.Module], type[BiasedAttention]] = {
    timm.layers.attention.Attention: BiasedAttention,
    timm.models.beit.Attention: BeitBiasedAttention,
    timm.models.eva.EvaAttention: RotaryBiasedAttention,
    timm.models.vision_transformer_sam.Attention: SamBiasedAttention,
}
if hasattr(timm.layers.attention, 'AttentionRope'):
    TIMM_ATTENTION[timm.layers.attention.AttentionRope] = RotaryBiasedAttention


def qkv_with_bias(attn: nn.Module, x: Tensor) -> Tensor:
    """x (B, N, C) -> (B, N, 3 * H * D); EVA and BEiT keep the bias apart from the projection."""
    qkv = attn.qkv(x)
    if getattr(attn, 'q_bias', None) is None:
        return qkv
    return qkv + torch.cat([attn.q_bias, attn.k_bias, attn.v_bias]).to(qkv.dtype)


def adopt(attn: nn.Module, std: float, **options) -> BiasedAttention:
    """Turn one of timm's attention modules into its bias-pruned form, in place.

    Args:
        attn: instance of a key of ``TIMM_ATTENTION``.
        std: of the new weights' normal distribution.
        options: of ``BiasedAttention.configure``; timm's own ``num_prefix_tokens``, which says
            what is not rotated, stays.
    """
    before = set(vars(attn)) | set(attn._modules)
    dense_class, first = type(attn), next(attn.parameters())
    inputs = (attn.q_proj if attn.qkv is None else attn.qkv).in_features
    if not hasattr(attn, 'head_dim'):
        attn.head_dim = attn.proj.in_features // attn.num_heads
    # what timm's module lacks comes from a layer of ours
    template = BiasedAttention(attn.num_heads, attn.num_heads, **options)
    for name, value in (*vars(template).items(), *template.named_children()):
        if not name.startswith('_') and not hasattr(attn, name):
            setattr(attn, name, value)
    attn.__class__ = TIMM_ATTENTION[dense_class]
    attn.key_bias = nn.Linear(
        inputs, attn.num_heads, bias=False, device=first.device, dtype=first.dtype)
    nn.init.normal_(attn.key_bias.weight, std=std)
    attn.train(attn.training)
    vars(attn)['adopted'] = dense_class, (set(vars(attn)) | set(attn._modules)) - before
    return attn


def release(attn: BiasedAttention) -> nn.Module:
    """Undo ``adopt``: timm's module again, without the key bias."""
    dense_class, added = vars(attn).pop('adopted')
    for name in added:
        delattr(attn, name)
    attn.__class__ = dense_class
    return attn
