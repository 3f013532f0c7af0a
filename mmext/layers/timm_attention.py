"""timm's attention modules with a key bias and pruning by it, put on by a change of class.

Each class below takes the place of one of timm's: ``adopt`` changes the class of a module in place
and adds the parameter ``key_bias``, ``release`` undoes it. Parameters, their names, hooks and
references to the module stay. Calls are those of timm (``attn_mask``, ``rope``, ...).

Symbols: B samples, N tokens (prefix tokens first), C channels, H heads, D head width.
"""

import timm.layers.attention
import timm.models.beit
import timm.models.eva
import torch
import torch.nn.functional as F
from timm.layers import apply_rot_embed_cat
from torch import Tensor, nn

from mmext.layers.biased_attention import BiasedAttention
from mmext.ops.column_selection import columns_to_mask
from mmext.ops.key_bias_attention import gather_columns, key_bias_attention


class PrunedAttention(BiasedAttention):
    """``timm.layers.Attention``; the base of the others.

    ``project`` gives q, k, v (B, H, N, D) and what timm adds to the logits.
    """

    def project(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False):
        """x (B, N, C) -> q, k, v (B, H, N, D), additive mask broadcastable to (B, H, N, N)."""
        if is_causal:
            raise ValueError('columns are kept for all queries at once: causal attention cannot '
                             'be pruned')
        batch, num_tokens, _ = x.shape
        qkv = self.qkv_projection(x).view(batch, num_tokens, 3, self.num_heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        return self.q_norm(q), self.k_norm(k), v, additive(attn_mask, x)

    def qkv_projection(self, x: Tensor) -> Tensor:
        """x (B, N, C) -> (B, N, 3 * H * D), with the bias wherever timm keeps it."""
        if getattr(self, 'q_bias', None) is None:
            return self.qkv(x)
        return F.linear(x, self.qkv.weight, torch.cat([self.q_bias, self.k_bias, self.v_bias]))

    def forward(self, x: Tensor, *args, return_intermediates: bool = False, **kwargs):
        """timm's call; with ``return_intermediates`` also the dict of ``BiasedAttention``."""
        num_tokens = x.shape[1]
        if self.is_plain and not args and all(
                value is None or value is False for value in kwargs.values()):
            # nothing but queries, keys and values: the form with the fast gathers
            return super().forward(x, (1, num_tokens - self.num_prefix),
                                   return_intermediates=return_intermediates)
        q, k, v, mask = self.project(x, *args, **kwargs)
        bias = self.compute_bias(x)
        # columns that no query may see rank last
        valid = None if mask is None else (mask > torch.finfo(mask.dtype).min / 2).expand(
            x.shape[0], -1, num_tokens, -1).any(2).any(1)
        selection = self.select(bias, valid, self.num_prefix)
        out = self._attend(q, k, v, bias, mask, valid, selection)
        out = self._finish(out.transpose(1, 2).flatten(2), x)
        if not return_intermediates:
            return out
        keep = None if selection is None else columns_to_mask(*selection, num_tokens)
        return out, self._intermediates(q, k, bias, None, keep, num_tokens, mask)

    def _attend(self, q, k, v, bias, mask, valid, selection) -> Tensor:
        """(B, H, N, D): masked or gathered, as ``BiasedAttention`` does."""
        keep = None if valid is None else valid[:, None].expand_as(bias)
        rule, mode = ((self.rule_train, self.train_mode) if self.training
                      else (self.rule_val, self.val_mode))
        if selection is not None and (mode == 'mask' or rule.tau is not None):
            keep = columns_to_mask(*selection, bias.shape[-1])
        elif selection is not None:
            index, keep = selection
            rows = index[..., None].expand(-1, -1, -1, v.shape[-1])
            k, v, bias = k.gather(2, rows), v.gather(2, rows), gather_columns(bias, index)
            if mask is not None:
                mask = mask.expand(*index.shape[:2], q.shape[2], -1).gather(
                    3, index[:, :, None].expand(-1, -1, q.shape[2], -1))
        dropout = self.attn_drop.p if self.training else 0.0
        return key_bias_attention(q, k, v, bias, keep, self.scale, dropout, mask)

    def _finish(self, out: Tensor, x: Tensor) -> Tensor:
        """out (B, N, H * D) of the attention, x its input -> (B, N, C)."""
        norm, gate = getattr(self, 'norm', None), getattr(self, 'gate', None)
        out = out if norm is None else norm(out)
        out = out if gate is None else out * gate(x).sigmoid()
        return self.proj_drop(self.proj(out))


class PrunedRopeAttention(PrunedAttention):
    """``timm.layers.AttentionRope`` and ``timm.models.eva.EvaAttention``: rotary positions."""

    def project(self, x: Tensor, rope: Tensor | None = None, attn_mask: Tensor | None = None,
                is_causal: bool = False):
        if self.qkv is not None:
            q, k, v, mask = super().project(x, attn_mask, is_causal)
        else:
            heads = (layer(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
                     for layer in (self.q_proj, self.k_proj, self.v_proj))
            q, k, v = heads
            q, k, mask = self.q_norm(q), self.k_norm(k), additive(attn_mask, x)
        if rope is not None:
            q, k = (self._rotate(part, rope).type_as(v) for part in (q, k))
        groups = q.shape[1] // k.shape[1]
        if groups > 1:  # grouped queries: pruning is per head, so every head gets its own copy
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        return q, k, v, mask

    def _rotate(self, part: Tensor, rope: Tensor) -> Tensor:
        prefix, patches = part.tensor_split([self.num_prefix_tokens], 2)
        patches = apply_rot_embed_cat(patches, rope, half=getattr(self, 'rotate_half', False))
        return torch.cat([prefix, patches], 2)


class PrunedBeitAttention(PrunedAttention):
    """``timm.models.beit.Attention``: relative positions as a bias of the logits."""

    def project(self, x: Tensor, shared_rel_pos_bias: Tensor | None = None):
        q, k, v, _ = super().project(x)
        mask = shared_rel_pos_bias
        if self.relative_position_bias_table is not None:
            own = self._get_rel_pos_bias()
            mask = own if mask is None else own + mask
        return q, k, v, mask

    def _get_rel_pos_bias(self) -> Tensor:
        """(1, H, N, N): timm's table looked up at its index."""
        table = self.relative_position_bias_table[self.relative_position_index]
        return table.permute(2, 0, 1)[None]


TIMM_ATTENTION: dict[type[nn.Module], type[PrunedAttention]] = {
    timm.layers.attention.Attention: PrunedAttention,
    timm.models.beit.Attention: PrunedBeitAttention,
    timm.models.eva.EvaAttention: PrunedRopeAttention,
}
if hasattr(timm.layers.attention, 'AttentionRope'):
    TIMM_ATTENTION[timm.layers.attention.AttentionRope] = PrunedRopeAttention


def additive(mask: Tensor | None, x: Tensor) -> Tensor | None:
    """A boolean mask (True takes part) or an additive one, as an additive one of four axes."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=x.dtype).masked_fill(~mask, -torch.inf)
    return mask[(None,) * (4 - mask.dim())]


def adopt(attn: nn.Module, num_prefix: int, std: float, **options) -> PrunedAttention:
    """Turn one of timm's attention modules into its bias-pruned form, in place.

    Args:
        attn: instance of a key of ``TIMM_ATTENTION``.
        num_prefix: prefix tokens (class token, registers) in front of the patch tokens.
        std: of the new weights' normal distribution.
        options: ``train_mode``, ``val_mode``, ``gather``, ``keep_cls`` of ``BiasedAttention``.
    """
    weight = attn.proj.weight
    template = BiasedAttention(attn.num_heads, attn.num_heads, **options)
    missing = {name: value for name, value in vars(template).items()
               if not name.startswith('_') and name not in vars(attn)}
    dense_class = type(attn)
    attn.__class__ = TIMM_ATTENTION[dense_class]
    vars(attn).update(missing, dense_class=dense_class, num_prefix=num_prefix, added=tuple(missing))
    for name in ('q_norm', 'k_norm'):
        if not hasattr(attn, name):
            attn.add_module(name, nn.Identity())
    attn.rel_pos_h = attn.rel_pos_w = None
    attn.head_dim = attn.qkv.out_features // (3 * attn.num_heads) if attn.qkv else attn.head_dim
    attn.is_plain = (
        type(attn) is PrunedAttention and attn.proj.in_features == attn.qkv.in_features
        and isinstance(getattr(attn, 'norm', nn.Identity()), nn.Identity)
        and getattr(attn, 'gate', None) is None)
    attn.key_bias = nn.Linear(
        (attn.qkv or attn.q_proj).in_features, attn.num_heads, bias=False, device=weight.device,
        dtype=weight.dtype)
    nn.init.normal_(attn.key_bias.weight, std=std)
    attn.key_bias.train(attn.training)
    return attn


def release(attn: PrunedAttention) -> nn.Module:
    """Undo ``adopt``: timm's module again, without the key bias."""
    del attn.key_bias
    for name in (*attn.added, 'added', 'num_prefix', 'is_plain', 'rel_pos_h', 'rel_pos_w'):
        vars(attn).pop(name, None)
    attn.__class__ = vars(attn).pop('dense_class')
    return attn
