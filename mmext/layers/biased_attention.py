"""Multi-head attention with a learned key bias that says which key-value columns can be dropped.

Source: "Exploiting Biases in Attention for Transformers" (2026), eq. (4)-(9): b = X W_b, one bias
per head and token, without a constant; A = softmax(Q K^T / sqrt(D) + 1 b^T). Parameter names follow
timm's ``Attention`` (``qkv``, ``proj``); new is ``key_bias``. Decomposed relative positions follow
detectron2's ViTDet (``rel_pos_h``, ``rel_pos_w``).

Symbols: B samples, N tokens (prefix tokens first), C channels, H heads, D = C / H, k kept columns.
"""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from timm.layers import trunc_normal_
from torch import Tensor, nn

from mmext.ops.column_selection import (
    check_ratio,
    columns_to_mask,
    num_kept,
    threshold_columns,
    top_k_columns,
)
from mmext.ops.key_bias_attention import (
    gather_columns,
    gather_kv,
    key_bias_attention,
    project_kept_kv,
    query_key_free_attention,
)
from mmext.ops.precision import no_autocast

# Picking rows of x and projecting them per head beats projecting everything and picking k and v up
# to this ratio k/N, on CPU. Measured on two cores, fp32, attention layer, time after / time before:
# N=4,096 d=384: 1.33 at ratio .1, 1.10 at .3, 1.04 at .5, 1.02 at .68, .97 at .9;
# d=192: 1.01 at .5, 1.00 at .68; d=768: 1.08 at .5, 1.01 at .61, .98 at .68;
# N=1,024 d=384: 1.55, 1.26, 1.14, 1.05, .98; forward and backward 1.48, 1.22, 1.10, 1.03, .98.
# Elsewhere products are cheap beside memory traffic (H*k*C gathered numbers against 2*k*C), and the
# form is not chosen unasked.
BEFORE_RATIO = 0.65


class Rule(NamedTuple):
    """Selection of columns: a keep ratio, a probability threshold, or neither (dense)."""

    ratio: float | None = None
    tau: float | None = None


def resolve_rules(keep_ratio, keep_ratio_val, tau, tau_val) -> tuple[Rule, Rule]:
    """Rules of training and validation, where 'same' takes the option of training.

    Raises:
        ValueError: one of them has both a keep ratio and a threshold.
    """
    validation = Rule(keep_ratio if keep_ratio_val == 'same' else keep_ratio_val,
                      tau if tau_val == 'same' else tau_val)
    for rule, end, why in ((Rule(keep_ratio, tau), '', ''), (
            validation, '_val', "; 'same', the default, takes the value of training")):
        if None not in rule:
            raise ValueError(f'keep_ratio{end}={rule.ratio} and tau{end}={rule.tau} exclude each '
                             f'other: set keep_ratio{end}=None or tau{end}=None{why}')
    return Rule(keep_ratio, tau), validation


class BiasedAttention(nn.Module):
    """Attention with key bias, dense or pruned by it.

    Args:
        dim, num_heads, qkv_bias, qk_norm, proj_bias, attn_drop, proj_drop, norm_layer: as timm's
            ``Attention``.
        key_bias: False leaves the bias out (plain attention, nothing can be pruned).
        bias_init: 'normal' (truncated, std .02) or 'zeros', which leaves a pre-trained network's
            output unchanged but makes the first top-k a tie.
        keep_ratio: share of the columns kept in training and validation, in (0, 1]; None keeps all.
        keep_ratio_val: the same for validation alone; 'same' takes ``keep_ratio``.
        tau: keeps instead the smallest set of columns with this mass under softmax(b), in (0, 1].
        tau_val: the same for validation alone; 'same' takes ``tau``.
        train_mode, val_mode: 'mask' attends over N x N with dropped columns at -inf, 'gather' over
            the kept columns only. Equal in value and gradient.
        gather: where the gathered form gathers: 'after' the projection to k and v, 'before' it
            (rows of x), or 'auto': on CPU by the ratio (see BEFORE_RATIO), else 'after'.
        keep_cls: prefix tokens are always kept, within k.
        rank_by_size: under token merging columns are ranked by b + log size instead of b.
        query_key_free: A = softmax(1 b^T). Query and key weights do not exist; the projection
            ``v`` replaces ``qkv``, and loading takes its rows out of a ``qkv`` where it finds one.
        rel_pos_size: (h, w) of the grid that decomposed relative positions are stored for.

    Raises:
        ValueError: an option is out of range or contradicts another.
    """

    def __init__(self, dim: int, num_heads: int = 8, qkv_bias: bool = False, qk_norm: bool = False,
                 proj_bias: bool = True, attn_drop: float = 0.0, proj_drop: float = 0.0,
                 norm_layer: type[nn.Module] = nn.LayerNorm, key_bias: bool = True,
                 bias_init: Literal['normal', 'zeros'] = 'normal',
                 keep_ratio: float | None = None,
                 keep_ratio_val: float | Literal['same'] | None = 'same',
                 tau: float | None = None, tau_val: float | Literal['same'] | None = 'same',
                 train_mode: Literal['mask', 'gather'] = 'mask',
                 val_mode: Literal['mask', 'gather'] = 'gather',
                 gather: Literal['auto', 'before', 'after'] = 'auto', keep_cls: bool = False,
                 rank_by_size: bool = False,
                 query_key_free: bool = False, rel_pos_size: tuple[int, int] | None = None):
        super().__init__()
        if dim % num_heads:
            raise ValueError(f'dim={dim} must be a multiple of num_heads={num_heads}')
        for name, mode in (('train_mode', train_mode), ('val_mode', val_mode)):
            if mode not in ('mask', 'gather'):
                raise ValueError(f"{name}={mode!r} must be 'mask' or 'gather'")
        if gather not in ('auto', 'before', 'after'):
            raise ValueError(f"gather={gather!r} must be 'auto', 'before' or 'after'")
        if bias_init not in ('normal', 'zeros'):
            raise ValueError(f"bias_init={bias_init!r} must be 'normal' or 'zeros'")
        if query_key_free and (not key_bias or rel_pos_size is not None or qk_norm):
            raise ValueError('query_key_free attention consists of the key bias alone: it needs '
                             'key_bias=True and takes neither qk_norm nor relative positions')
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.scale = self.head_dim ** -0.5
        self.bias_init = bias_init
        self.train_mode = train_mode
        self.val_mode = val_mode
        self.gather = gather
        self.keep_cls = keep_cls
        self.rank_by_size = rank_by_size
        self.query_key_free = query_key_free

        if query_key_free:
            self.v = nn.Linear(dim, dim, bias=qkv_bias)
        else:
            self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.q_norm = norm_layer(self.head_dim) if qk_norm else nn.Identity()
        self.k_norm = norm_layer(self.head_dim) if qk_norm else nn.Identity()
        self.key_bias = nn.Linear(dim, num_heads, bias=False) if key_bias else None
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim, bias=proj_bias)
        self.proj_drop = nn.Dropout(proj_drop)
        if rel_pos_size is not None:
            self.rel_pos_h = nn.Parameter(torch.zeros(2 * rel_pos_size[0] - 1, self.head_dim))
            self.rel_pos_w = nn.Parameter(torch.zeros(2 * rel_pos_size[1] - 1, self.head_dim))
        else:
            self.rel_pos_h = self.rel_pos_w = None
        self.reset_key_bias()

        self.rule_train = self.rule_val = Rule()
        training, validation = resolve_rules(keep_ratio, keep_ratio_val, tau, tau_val)
        self._set_rule(training, train=True, val=False)
        self._set_rule(validation, train=False, val=True)

    def reset_key_bias(self) -> None:
        if self.key_bias is None:
            return
        if self.bias_init == 'zeros':
            nn.init.zeros_(self.key_bias.weight)
        else:
            trunc_normal_(self.key_bias.weight, std=0.02)

    # ------------------------------------------------------------------ selection
    def set_keep_ratio(self, value: float | None, train: bool = True, val: bool = True) -> None:
        """Change the keep ratio of a live layer; None keeps all columns."""
        self._set_rule(Rule(ratio=value), train, val)

    def set_tau(self, value: float | None, train: bool = True, val: bool = True) -> None:
        """Change to the probability threshold; None keeps all columns."""
        self._set_rule(Rule(tau=value), train, val)

    def _set_rule(self, rule: Rule, train: bool, val: bool) -> None:
        ratio = None if rule.ratio is None else check_ratio(rule.ratio)
        tau = None if rule.tau is None else check_ratio(rule.tau, 'tau')
        if self.key_bias is None and (ratio is not None or tau is not None):
            raise ValueError('columns are chosen by the key bias: pruning needs key_bias=True')
        if train:
            self.rule_train = Rule(ratio, tau)
        if val:
            self.rule_val = Rule(ratio, tau)

    def select(self, bias: Tensor, valid: Tensor | None, num_prefix: int
               ) -> tuple[Tensor, Tensor | None] | None:
        """index (B, H, k) and kept (B, H, k) or None; None altogether when every column stays."""
        rule = self.rule_train if self.training else self.rule_val
        protected = num_prefix if self.keep_cls else 0
        if rule.tau is not None:
            return threshold_columns(bias, rule.tau, valid, protected)
        if rule.ratio is None or num_kept(rule.ratio, bias.shape[-1]) == bias.shape[-1]:
            return None
        return top_k_columns(bias, rule.ratio, valid, protected)

    # ------------------------------------------------------------------ forward
    def compute_bias(self, x: Tensor) -> Tensor | None:
        """x (B, N, C) -> b (B, H, N), at least fp32: half precision would blur the ranking."""
        if self.key_bias is None:
            return None
        with no_autocast(x):
            dtype = torch.promote_types(x.dtype, torch.float32)
            bias = F.linear(x.to(dtype), self.key_bias.weight.to(dtype)).transpose(1, 2)
        return bias.contiguous()  # fused kernels refuse masks with a stride between columns

    def forward(self, x: Tensor, hw: tuple[int, int] | None = None, valid: Tensor | None = None,
                return_intermediates: bool = False, log_size: Tensor | None = None,
                return_metric: bool = False):
        """Attend.

        Args:
            x: (B, N, C), prefix tokens first.
            hw: grid (h, w) of the patch tokens; None takes every token for a patch.
            valid: (B, N) bool, False for padding, which is never attended to; the keep ratio then
                counts valid tokens, sample by sample.
            return_intermediates: see below.
            log_size: (B, N), added to the logits (proportional attention of token merging), and
                to the ranking with ``rank_by_size``.
            return_metric: see below.

        Returns:
            out (B, N, C); with ``return_intermediates`` (out, dict) of ``logits`` (B, H, N, N;
            scaled q k^T, without bias), ``bias`` (B, H, N), ``attn`` (B, H, N, N) and ``keep``
            (B, H, N) bool; with ``return_metric`` (out, metric), the keys' mean over heads
            (B, N, D) (values where there are no keys).
        """
        batch, num_tokens, dim = x.shape
        num_prefix = 0 if hw is None else num_tokens - hw[0] * hw[1]
        bias = logit_bias = self.compute_bias(x)
        if log_size is not None:
            size_bias = log_size[:, None].expand(-1, self.num_heads, -1)
            logit_bias = size_bias if bias is None else bias + size_bias
        rank = logit_bias if self.rank_by_size else bias
        selection = None if bias is None else self.select(rank, valid, num_prefix)
        full_keep = None if valid is None else valid[:, None].expand(-1, self.num_heads, -1)
        need_full = return_intermediates or return_metric

        metric = extras = None
        if self.query_key_free:
            if selection is not None:
                full_keep = columns_to_mask(*selection, num_tokens)
            v = self.v(x).view(batch, num_tokens, self.num_heads, self.head_dim).transpose(1, 2)
            dropout = self.attn_drop.p if self.training else 0.0
            out = query_key_free_attention(v, logit_bias, full_keep, dropout)
            out = out.expand(-1, -1, num_tokens, -1)
            metric = v.mean(1) if return_metric else None
            if return_intermediates:
                extras = self._intermediates(None, None, bias, logit_bias, full_keep, num_tokens)
        else:
            q, k, v, keep, gathered_bias, index, qkv = self._project(
                x, logit_bias, selection, full_keep, need_full)
            rel = None if self.rel_pos_h is None else self._relative_logits(
                q, hw, index).to(torch.float32 if q.dtype.itemsize < 4 else q.dtype)
            out = key_bias_attention(
                q, k, v, gathered_bias, keep, self.scale,
                self.attn_drop.p if self.training else 0.0, rel)
            if need_full:
                full_k = self.k_norm(qkv[:, :, 1].transpose(1, 2))
                metric = full_k.mean(1)
            if return_intermediates:
                rel = None if rel is None else self._relative_logits(q, hw, None)
                if selection is not None:
                    full_keep = columns_to_mask(*selection, num_tokens)
                extras = self._intermediates(
                    q, full_k, bias, logit_bias, full_keep, num_tokens, rel)

        out = self.proj_drop(self.proj(out.transpose(1, 2).reshape(batch, num_tokens, dim)))
        if return_intermediates:
            return out, extras
        return (out, metric) if return_metric else out

    def _project(self, x, bias, selection, full_keep, need_full):
        """q for all tokens; k, v, bias and keep for all or for the gathered columns."""
        batch, num_tokens, dim = x.shape
        heads, width = self.num_heads, self.head_dim
        mode = self.train_mode if self.training else self.val_mode
        index = None
        if selection is not None:
            index, kept = selection
            rule = self.rule_train if self.training else self.rule_val
            if mode == 'gather' and rule.tau is not None:
                if torch.compiler.is_compiling():
                    mode = 'mask'  # the number of columns depends on the data
                else:
                    longest = int(kept.sum(-1).max())
                    index, kept = index[..., :longest], kept[..., :longest]
            if mode == 'mask':
                full_keep, index = columns_to_mask(index, kept, num_tokens), None

        if (index is not None and not need_full
                and self._before(index.shape[-1] / num_tokens, x.device)):
            weight, qkv_bias = self.qkv.weight, self.qkv.bias
            q = F.linear(x, weight[:dim], None if qkv_bias is None else qkv_bias[:dim])
            q = q.view(batch, num_tokens, heads, width)
            k, v = project_kept_kv(
                x, index, weight[dim:], None if qkv_bias is None else qkv_bias[dim:])
            qkv = None
        else:
            qkv = self.qkv(x).view(batch, num_tokens, 3, heads, width)
            q = qkv[:, :, 0]
            if index is not None:
                k, v = gather_kv(qkv, index)
            else:
                k, v = qkv[:, :, 1].transpose(1, 2), qkv[:, :, 2].transpose(1, 2)
        if index is not None:
            bias, full_keep = gather_columns(bias, index), kept
        return (self.q_norm(q.transpose(1, 2)), self.k_norm(k), v, full_keep, bias, index, qkv)

    def _before(self, ratio: float, device: torch.device) -> bool:
        if self.gather == 'auto':
            return device.type == 'cpu' and ratio <= BEFORE_RATIO
        return self.gather == 'before'

    def _relative_logits(self, q: Tensor, hw: tuple[int, int], index: Tensor | None) -> Tensor:
        """Decomposed relative positions: q_i . R_h[y_i - y_j] + q_i . R_w[x_i - x_j].

        Args:
            q: (B, H, N, D), unscaled; index (B, H, k) restricts the columns j.

        Returns:
            (B, H, N, N or k).
        """
        height, width = hw
        if q.shape[2] != height * width:
            raise ValueError('relative positions are for patch tokens only: use them without '
                             'class token')
        grid = q.unflatten(2, (height, width))
        rel_h = _relative_table(self.rel_pos_h, height).to(q.dtype)
        rel_w = _relative_table(self.rel_pos_w, width).to(q.dtype)
        rel_h = torch.einsum('bnhwc,hkc->bnhwk', grid, rel_h).flatten(2, 3)
        rel_w = torch.einsum('bnhwc,wkc->bnhwk', grid, rel_w).flatten(2, 3)
        if index is None:
            return (rel_h.unsqueeze(-1) + rel_w.unsqueeze(-2)).flatten(-2)
        index = index[:, :, None].expand(-1, -1, q.shape[2], -1)
        return rel_h.gather(-1, index // width) + rel_w.gather(-1, index % width)

    def _intermediates(self, q, k, bias, logit_bias, keep, num_tokens, rel=None):
        """The explicit N x N quantities, for analysis."""
        shape = (logit_bias if k is None else k).shape[:2]
        if k is None:
            logits = logit_bias.new_zeros(1).expand(*shape, num_tokens, num_tokens)
        else:
            dtype = torch.promote_types(q.dtype, torch.float32)
            logits = q.to(dtype) @ k.to(dtype).transpose(-2, -1) * self.scale
            logits = logits if rel is None else logits + rel
        if bias is None:
            bias = logits.new_zeros(*shape, num_tokens)
        attn = logits + (bias if logit_bias is None else logit_bias)[:, :, None]
        if keep is None:
            keep = torch.ones(*shape, num_tokens, dtype=torch.bool, device=bias.device)
        attn = attn.masked_fill(~keep[:, :, None], -torch.inf).softmax(-1)
        return {'logits': logits, 'bias': bias, 'attn': attn, 'keep': keep}

    # ------------------------------------------------------------------ loading
    def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs):
        """A query-key-free layer takes the value rows of a dense checkpoint's ``qkv``."""
        if self.query_key_free:
            for name in ('weight', 'bias'):
                dense = state_dict.pop(f'{prefix}qkv.{name}', None)
                if dense is not None:
                    state_dict[f'{prefix}v.{name}'] = dense[2 * dense.shape[0] // 3:]
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def _relative_table(table: Tensor, size: int) -> Tensor:
    """table (2 S - 1, D), resampled linearly to 2 * size - 1 -> (size, size, D): R[y_i - y_j]."""
    if table.shape[0] != 2 * size - 1:
        table = F.interpolate(
            table.t()[None].float(), size=2 * size - 1, mode='linear')[0].t().to(table.dtype)
    position = torch.arange(size, device=table.device)
    return table[position[:, None] - position[None] + size - 1]
