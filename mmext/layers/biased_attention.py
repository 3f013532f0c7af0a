"""Multi-head attention with a learned key bias that says which key-value columns can be dropped.

Source: "Exploiting Biases in Attention for Transformers" (2026), eq. (4)-(9): b = X W_b, one bias
per head and token, without a constant; A = softmax(Q K^T / sqrt(D) + 1 b^T). Parameter names follow
timm's ``Attention`` (``qkv``, ``proj``); new is ``key_bias``.

Every layer of the family goes the same way, and differs in its steps alone:

    compute_bias -> choose (columns) -> project (heads) -> attend -> finish

Symbols: B samples, N tokens (prefix tokens first), C channels, H heads, D head width, k columns.
"""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from timm.layers import trunc_normal_
from torch import Tensor, nn

from mmext.layers.common import check_heads, is_plain_linear, merge_heads
from mmext.ops.column_selection import Columns, KeepRule, choose_columns, keep_rules
from mmext.ops.key_bias import gather_kv, key_bias_attention, project_kept_kv
from mmext.ops.precision import no_autocast

# Picking rows of x and projecting them per head beats projecting everything and picking k and v up
# to this ratio k/N, on CPU. Measured on two cores, fp32, attention layer, time after / time before:
# N=4,096 d=384: 1.33 at ratio .1, 1.10 at .3, 1.04 at .5, 1.02 at .68, .97 at .9;
# d=192: 1.01 at .5, 1.00 at .68; d=768: 1.08 at .5, 1.01 at .61, .98 at .68;
# N=1,024 d=384: 1.55, 1.26, 1.14, 1.05, .98; forward and backward 1.48, 1.22, 1.10, 1.03, .98.
# Elsewhere products are cheap beside memory traffic (H*k*C gathered numbers against 2*k*C), and the
# form is not chosen unasked.
BEFORE_RATIO = 0.65
ALL_COLUMNS = Columns()
# What a layer is told beyond timm's constructor, and can be told again at any time
OPTIONS = ('train_mode', 'val_mode', 'gather', 'keep_prefix', 'num_prefix_tokens', 'rank_by_size')


class Heads(NamedTuple):
    """q (B, H, N, D) of all tokens; k, v (B, H, k or N, D) of the columns; further bias of the
    logits, broadcastable to (B, H, N, k or N), or None."""

    q: Tensor | None
    k: Tensor | None
    v: Tensor
    logit_bias: Tensor | None = None

    def gather(self, columns: Columns) -> 'Heads':
        """The same for some of the columns."""
        bias = None if self.logit_bias is None else columns.gather_logits(self.logit_bias)
        k = None if self.k is None else columns.gather(self.k)
        return Heads(self.q, k, columns.gather(self.v), bias)


class BiasedAttention(nn.Module):
    """Attention with key bias, dense or pruned by it; takes the place of ``timm.layers.Attention``.

    Args:
        dim, num_heads, attn_head_dim, dim_out, qkv_bias, qk_norm, scale_norm, proj_bias, gated,
            attn_drop, proj_drop, norm_layer, device, dtype: as timm's ``Attention``.
        key_bias: False leaves the bias out (plain attention, nothing can be pruned).
        bias_init: 'normal' (truncated, std .02, timm's start of a linear layer; the paper is
            silent) or 'zeros', which leaves a pre-trained network's output unchanged but makes the
            first top-k a tie.
        keep_ratio: share of the columns kept in training and validation, in (0, 1]; None keeps all.
        keep_ratio_val: the same for validation alone; 'same' takes ``keep_ratio``.
        tau: keeps instead the smallest set of columns with this mass under softmax(b), in (0, 1].
        tau_val: the same for validation alone; 'same' takes ``tau``.
        train_mode, val_mode: 'mask' attends over N x N with dropped columns at -inf, 'gather' over
            the kept columns only. Equal in value and gradient.
        gather: where the gathered form gathers: 'after' the projection to k and v, 'before' it
            (rows of x), or 'auto': on CPU by the ratio (see BEFORE_RATIO), else 'after'.
        num_prefix_tokens: class token and registers in front of the patch tokens.
        keep_prefix: their columns are always kept, within k (our choice, the paper is
            silent); False lets them compete.
        rank_by_size: under token merging columns are ranked by b + log size instead of b.

    Raises:
        ValueError: an option is out of range or contradicts another.
    """

    def __init__(self, dim: int, num_heads: int = 8, attn_head_dim: int | None = None,
                 dim_out: int | None = None, qkv_bias: bool = False, qk_norm: bool = False,
                 scale_norm: bool = False, proj_bias: bool = True, gated: bool = False,
                 attn_drop: float = 0.0, proj_drop: float = 0.0,
                 norm_layer: type[nn.Module] | None = None, device=None, dtype=None, *,
                 key_bias: bool = True, bias_init: Literal['normal', 'zeros'] = 'normal',
                 keep_ratio: float | None = None,
                 keep_ratio_val: float | Literal['same'] | None = 'same',
                 tau: float | None = None, tau_val: float | Literal['same'] | None = 'same',
                 train_mode: Literal['mask', 'gather'] = 'mask',
                 val_mode: Literal['mask', 'gather'] = 'gather',
                 gather: Literal['auto', 'before', 'after'] = 'auto',
                 num_prefix_tokens: int = 0, keep_prefix: bool = True,
                 rank_by_size: bool = False):
        super().__init__()
        if attn_head_dim is None:
            check_heads(dim, num_heads, type(self).__name__)
        if bias_init not in ('normal', 'zeros'):
            raise ValueError(f"bias_init={bias_init!r} must be 'normal' or 'zeros'")
        dd = dict(device=device, dtype=dtype)
        norm_layer = norm_layer or nn.LayerNorm
        self.num_heads = num_heads
        self.head_dim = attn_head_dim or dim // num_heads
        self.scale = self.head_dim ** -0.5
        self.bias_init = bias_init
        self.configure(
            train_mode=train_mode, val_mode=val_mode, gather=gather, keep_prefix=keep_prefix,
            num_prefix_tokens=num_prefix_tokens, rank_by_size=rank_by_size)

        width = num_heads * self.head_dim
        self.build_projections(dim, width, qkv_bias, **dd)
        self.q_norm = norm_layer(self.head_dim, **dd) if qk_norm else nn.Identity()
        self.k_norm = norm_layer(self.head_dim, **dd) if qk_norm else nn.Identity()
        self.key_bias = nn.Linear(dim, num_heads, bias=False, **dd) if key_bias else None
        self.attn_drop = nn.Dropout(attn_drop)
        self.norm = norm_layer(width, **dd) if scale_norm else nn.Identity()
        self.gate = nn.Linear(dim, width, bias=qkv_bias, **dd) if gated else None
        self.proj = nn.Linear(width, dim_out or dim, bias=proj_bias, **dd)
        self.proj_drop = nn.Dropout(proj_drop)
        self.reset_key_bias()

        self.rule_train = self.rule_val = KeepRule()
        training, validation = resolve_rules(keep_ratio, keep_ratio_val, tau, tau_val)
        self.set_rule(training[0], val=False)
        self.set_rule(validation[0], train=False)

    def build_projections(self, dim: int, width: int, qkv_bias: bool, **dd) -> None:
        self.qkv = nn.Linear(dim, 3 * width, bias=qkv_bias, **dd)

    def reset_key_bias(self) -> None:
        if self.key_bias is None:
            return
        if self.bias_init == 'zeros':
            nn.init.zeros_(self.key_bias.weight)
        else:
            trunc_normal_(self.key_bias.weight, std=0.02)

    # ------------------------------------------------------------------ live settings
    def configure(self, **options) -> None:
        """Set some of ``OPTIONS``; ValueError for an unknown name or value."""
        allowed = dict(train_mode=('mask', 'gather'), val_mode=('mask', 'gather'),
                       gather=('auto', 'before', 'after'))
        for name, value in options.items():
            if name not in OPTIONS:
                raise ValueError(f'{name} is no option of a live layer; these are {OPTIONS}')
            if name in allowed and value not in allowed[name]:
                raise ValueError(f'{name}={value!r} must be one of {allowed[name]}')
            setattr(self, name, value)

    def set_keep_ratio(self, value: float | None, train: bool = True, val: bool = True) -> None:
        """Change the keep ratio of a live layer; None keeps all columns."""
        self.set_rule(keep_rules(value, None, 1)[0], train, val)

    def set_tau(self, value: float | None, train: bool = True, val: bool = True) -> None:
        """Change to the probability threshold; None keeps all columns."""
        self.set_rule(keep_rules(None, value, 1)[0], train, val)

    def set_rule(self, rule: KeepRule, train: bool = True, val: bool = True) -> None:
        """Change to a rule of ``keep_rules``."""
        if self.key_bias is None and rule != KeepRule():
            raise ValueError('columns are chosen by the key bias: pruning needs key_bias=True')
        if train:
            self.rule_train = rule
        if val:
            self.rule_val = rule

    # ------------------------------------------------------------------ steps
    def compute_bias(self, x: Tensor) -> Tensor | None:
        """x (B, N, C) -> b (B, H, N), at least fp32: half precision would blur the ranking."""
        if self.key_bias is None:
            return None
        with no_autocast(x):
            dtype = torch.promote_types(x.dtype, torch.float32)
            if is_plain_linear(self.key_bias):
                bias = F.linear(x.to(dtype), self.key_bias.weight.to(dtype))
            else:
                bias = self.key_bias(x).to(dtype)
        # fused kernels refuse masks with a stride between columns
        return bias.transpose(1, 2).contiguous()

    def choose(self, bias: Tensor | None, valid: Tensor | None = None,
               log_size: Tensor | None = None) -> Columns:
        """The columns that the rule of the current mode keeps.

        Args:
            bias: (B, H, N) or None (nothing is pruned).
            valid: (B, N) bool, False for padding.
            log_size: (B, H, N) of merged tokens.
        """
        if bias is None:
            return Columns(None, None if valid is None else valid[:, None].expand(
                -1, self.num_heads, -1))
        rule, mode = ((self.rule_train, self.train_mode) if self.training
                      else (self.rule_val, self.val_mode))
        rank = bias + log_size if self.rank_by_size and log_size is not None else bias
        protected = self.num_prefix_tokens if self.keep_prefix else 0
        return choose_columns(rank, rule, valid, protected, gather=mode == 'gather')

    def project(self, x: Tensor, columns: Columns = ALL_COLUMNS, hw: tuple[int, int] | None = None,
                attn_mask: Tensor | None = None) -> Heads:
        """x (B, N, C) -> heads, k and v of the gathered columns alone.

        Args:
            hw: grid of the patch tokens, for layers with relative positions.
            attn_mask: additive, broadcastable to (B, H, N, N).
        """
        batch, num_tokens, _ = x.shape
        width = self.num_heads * self.head_dim
        mask = None if attn_mask is None else columns.gather_logits(attn_mask)
        if columns.index is not None and self.gathers_before(columns, x):
            weight, bias = self.qkv.weight, self.qkv.bias
            q = F.linear(x, weight[:width], None if bias is None else bias[:width])
            q = q.reshape(batch, num_tokens, 1, self.num_heads, self.head_dim)
            k, v = project_kept_kv(
                x, columns.index, weight[width:], None if bias is None else bias[width:])
        else:
            q = qkv = self.qkv(x).reshape(
                batch, num_tokens, 3, self.num_heads, self.head_dim)
            if columns.index is None:
                k, v = qkv.permute(2, 0, 3, 1, 4)[1:]
            else:
                k, v = gather_kv(qkv, columns.index)
        return Heads(self.q_norm(q[:, :, 0].transpose(1, 2)), self.k_norm(k), v, mask)

    def gathers_before(self, columns: Columns, x: Tensor) -> bool:
        """Whether rows of x are gathered instead of keys and values."""
        if not is_plain_linear(self.qkv):
            return False
        if self.gather == 'auto':
            return x.device.type == 'cpu' and columns.index.shape[-1] <= BEFORE_RATIO * x.shape[1]
        return self.gather == 'before'

    def attend(self, heads: Heads, bias: Tensor | None, columns: Columns) -> Tensor:
        """Heads of the columns, bias (B, H, N) -> (B, H, N, D)."""
        return key_bias_attention(
            heads.q, heads.k, heads.v, None if bias is None else columns.gather(bias),
            columns.kept, self.scale, self.attn_drop.p if self.training else 0.0,
            heads.logit_bias)

    def finish(self, out: Tensor, x: Tensor) -> Tensor:
        """Output of the heads (B, H, N, D), input of the layer (B, N, C) -> (B, N, C)."""
        out = self.norm(merge_heads(out))
        if self.gate is not None:
            out = out * self.gate(x).sigmoid()
        return self.proj_drop(self.proj(out))

    # ------------------------------------------------------------------ forward
    def forward(self, x: Tensor, hw: tuple[int, int] | None = None, valid: Tensor | None = None,
                attn_mask: Tensor | None = None, is_causal: bool = False,
                log_size: Tensor | None = None, **positions) -> Tensor:
        """Attend.

        Args:
            x: (B, N, C), prefix tokens first.
            hw: grid (h, w) of the patch tokens, for layers with relative positions.
            valid: (B, N) bool, False for padding, which is never attended to; the keep ratio then
                counts valid tokens, sample by sample.
            attn_mask: bool (True takes part) or additive, broadcastable to (B, H, N, N); columns
                that no query may see rank last.
            is_causal: must be False: columns are kept for all queries at once.
            log_size: (B, N), added to the logits (proportional attention of token merging), and
                to the ranking with ``rank_by_size``.
            positions: what ``project`` of a subclass takes.

        Returns:
            (B, N, C).
        """
        attn_mask, valid, log_size = self.check_call(x, attn_mask, is_causal, valid, log_size)
        bias = self.compute_bias(x)
        columns = self.choose(bias, valid, log_size)
        heads = self.project(x, columns, hw=hw, attn_mask=attn_mask, **positions)
        return self.finish(self.attend(heads, add(bias, log_size), columns), x)

    def forward_intermediates(
            self, x: Tensor, hw: tuple[int, int] | None = None, valid: Tensor | None = None,
            attn_mask: Tensor | None = None, is_causal: bool = False,
            log_size: Tensor | None = None, **positions) -> tuple[Tensor, dict[str, Tensor]]:
        """``forward`` on the same steps, with the explicit quantities for analysis.

        Returns:
            out (B, N, C), and a dict of ``logits`` (B, H, N, N; scaled q k^T and relative
            positions, without key bias), ``bias`` (B, H, N), ``attn`` (B, H, N, N) and ``kept``
            (B, H, N) bool.
        """
        attn_mask, valid, log_size = self.check_call(x, attn_mask, is_causal, valid, log_size)
        bias = self.compute_bias(x)
        columns = self.choose(bias, valid, log_size)
        heads = self.project(x, hw=hw, attn_mask=attn_mask, **positions)
        out = self.finish(
            self.attend(heads.gather(columns), add(bias, log_size), columns), x)
        logits = self.logits(heads)
        bias = logits.new_zeros(logits.shape[:3]) if bias is None else bias
        kept = columns.mask(bias).expand_as(bias)
        attn = (logits + add(bias, log_size)[:, :, None]).masked_fill(~kept[:, :, None], -torch.inf)
        return out, {'logits': logits, 'bias': bias, 'attn': attn.softmax(-1), 'kept': kept}

    def logits(self, heads: Heads) -> Tensor:
        """Heads of all columns -> (B, H, N, N), at least fp32, without key bias."""
        dtype = torch.promote_types(heads.q.dtype, torch.float32)
        return add(heads.q.to(dtype) @ heads.k.to(dtype).transpose(-2, -1) * self.scale,
                   heads.logit_bias)

    def check_call(self, x, attn_mask, is_causal, valid, log_size):
        """The additive mask of four axes, the valid columns, and log_size (B, H, N)."""
        if is_causal:
            raise ValueError('columns are kept for all queries at once: causal attention cannot '
                             'be pruned (is_causal=True)')
        if attn_mask is not None:
            if attn_mask.dtype == torch.bool:
                attn_mask = torch.zeros_like(attn_mask, dtype=x.dtype).masked_fill(
                    ~attn_mask, -torch.inf)
            attn_mask = attn_mask[(None,) * (4 - attn_mask.dim())]
            seen = attn_mask > torch.finfo(attn_mask.dtype).min / 2
            seen = seen.expand(x.shape[0], -1, -1, x.shape[1]).any(2).any(1)
            valid = seen if valid is None else valid & seen
        if log_size is not None:
            log_size = log_size[:, None].expand(-1, self.num_heads, -1)
        return attn_mask, valid, log_size


def resolve_rules(keep_ratio, keep_ratio_val, tau, tau_val, depth: int = 1
                  ) -> tuple[list[KeepRule], list[KeepRule]]:
    """Rules of training and of validation, where 'same' takes the option of training."""
    training = keep_rules(keep_ratio, tau, depth)
    if keep_ratio_val == 'same' and tau_val == 'same':
        return training, training
    return training, keep_rules(keep_ratio if keep_ratio_val == 'same' else keep_ratio_val,
                                tau if tau_val == 'same' else tau_val, depth, '_val')


def with_options(layer: type[BiasedAttention], **options) -> type:
    """``layer`` with options filled in, as a class: timm's blocks ask for one as ``attn_layer``."""

    def create(_, *args, **kwargs):
        return layer(*args, **kwargs, **options)

    return type(layer.__name__, (), {'__new__': create})


def add(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """a + b, where None is nothing."""
    return b if a is None else a if b is None else a + b
