"""Attention with an input-dependent key bias: softmax(q k^T * scale + 1 b^T) v.

Source: "Exploiting Biases in Attention for Transformers" (2026), eq. (5); the bias is added after
scaling. Symbols: B samples, H heads, M queries, N keys, k kept keys, D head width, C = H*D.
q (B, H, M, D); k, v (B, H, N, D); bias (B, H, N) in logit units, best kept in fp32.

Forms, equal in value and gradient:
- dense: every column;
- masked: dropped columns get -inf, over the full N x N (training);
- gathered: k and v of the kept columns only (validation, or training as well), gathered after
  their projection (``gather_kv``) or before it (``project_kept_kv``);
- query-key-free: A = softmax(1 b^T), one output for all queries.

``reference_key_bias_attention`` is the plain version that the others are tested against.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

from mmext.ops.autograd import differentiated_again, gradients, own_backward
from mmext.ops.precision import autocast_copy

# Exactly zero weight after softmax without the NaN that inf * 0 gives in a channel's gradient.
DROPPED = {torch.float16: -6e4, torch.bfloat16: -1e30, torch.float32: -1e30, torch.float64: -1e30}
# Numbers gathered at once by project_kept_kv: bounds its memory, and measured faster than all heads
# at once (ViT-L at 4,096 tokens and ratio .3: 58 against 93 ms on one CPU core).
GATHERED_NUMBERS = 2 ** 23
FORMS = ('auto', 'mask', 'channels')
_FORM = 'auto'  # what 'auto' means, see use_form
CHANNELS = {torch.float16: 2, torch.bfloat16: 3, torch.float32: 1, torch.float64: 1}


def reference_key_bias_attention(
        q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, kept: Tensor | None = None,
        scale: float | None = None) -> tuple[Tensor, Tensor]:
    """Explicit form in one dtype; also returns the attention matrix.

    Args:
        q, k, v, bias: see the module; ``kept`` (B, H, N) bool, False drops a column.
        scale: of the logits, D ** -.5 by default.

    Returns:
        output (B, H, M, D), attention (B, H, M, N).
    """
    logits = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        logits = logits + bias[:, :, None]
    if kept is not None:
        logits = logits.masked_fill(~kept[:, :, None], -math.inf)
    attn = logits.softmax(-1)
    return attn @ v, attn


def key_bias_attention(
        q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, kept: Tensor | None = None,
        scale: float | None = None, dropout_p: float = 0.0, logit_bias: Tensor | None = None,
        form: str = 'auto') -> Tensor:
    """Dense or masked attention through the fused kernels; gathered k, v work alike.

    Args:
        q, k, v, bias, kept, scale: as in ``reference_key_bias_attention``.
        dropout_p: dropout of the attention weights.
        logit_bias: (B, H, M, N) further bias that depends on the query (relative positions).
        form: 'mask' hands the bias over as additive mask; 'channels' as extra key channels, which
            keeps kernels that refuse masks or their gradients eligible; 'auto' chooses.

    Returns:
        (B, H, M, D) in the dtype of q.
    """
    if form not in FORMS:
        raise ValueError(f"form={form!r} must be 'auto', 'mask' or 'channels'")
    form = _FORM if form == 'auto' else form
    if bias is None and kept is not None:
        bias = torch.zeros_like(kept, dtype=torch.float32 if q.dtype.itemsize < 4 else q.dtype)
    if bias is not None:
        bias = _centered(bias, kept)
        if logit_bias is None and (
                form == 'channels' or (form == 'auto' and _prefers_channels(q, bias))):
            return channel_bias_attention(q, k, v, bias, scale, dropout_p)
        bias = bias[:, :, None]
    mask = bias if logit_bias is None else logit_bias if bias is None else bias + logit_bias
    if mask is not None and (q.device.type != 'cpu' or mask.dtype.itemsize > 4):
        mask = mask.to(q.dtype)  # the CPU kernels alone take an fp32 mask beside half-precision q
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout_p, scale=scale)


@contextmanager
def use_form(form: str) -> Iterator[None]:
    """What ``form='auto'`` of ``key_bias_attention`` means meanwhile, in this process.

    As ``timm.layers.set_fused_attn``: for counting, tracing and comparing the forms.
    """
    global _FORM
    if form not in FORMS:
        raise ValueError(f"form={form!r} must be 'auto', 'mask' or 'channels'")
    before, _FORM = _FORM, form
    try:
        yield
    finally:
        _FORM = before


def _centered(bias: Tensor, kept: Tensor | None) -> Tensor:
    """Shift the bias so that its largest kept entry is 0; drop the columns outside ``kept``.

    The softmax does not see a constant per row; fp16 and bf16 resolve values near 0 best.
    """
    if kept is not None:
        bias = bias.masked_fill(~kept, -math.inf)
    return bias - bias.detach().amax(-1, keepdim=True)


def _prefers_channels(q: Tensor, bias: Tensor) -> bool:
    """Flash kernels on CUDA refuse masks; the fused CPU kernel refuses masks that need gradients
    and would fall back to an N x N matrix."""
    if q.device.type == 'cuda':
        return q.dtype in (torch.float16, torch.bfloat16)
    return q.device.type == 'cpu' and torch.is_grad_enabled() and bias.requires_grad


def channel_bias_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor,
                           scale: float | None = None, dropout_p: float = 0.0) -> Tensor:
    """The bias as extra channels: q' = [q, c, ..], k' = [k, b_1, ..] with c * scale * sum b_i = b.

    In reduced precision the bias is split over two (fp16) or three (bf16) channels, which gives it
    the accuracy of fp32; the head width is padded to a multiple of 8, as flash kernels ask for.

    Args:
        bias: (B, H, N), at most 0 (see ``_centered``); -inf drops a column.
    """
    dtype, width = q.dtype, q.shape[-1]
    scale = width ** -0.5 if scale is None else scale
    # a power of two keeps the query channel exact; 64 leaves fp16 room for a bias of -2e4 and more
    query_value = 64.0
    parts = _split(bias / (query_value * scale), dtype)
    extra = len(parts)
    pad = -(width + extra) % 8
    q = torch.cat([q, q.new_full((*q.shape[:-1], extra), query_value)], -1)
    k = torch.cat([k, torch.stack(parts, -1)], -1)
    if pad:
        q, k = F.pad(q, (0, pad)), F.pad(k, (0, pad))
    out = F.scaled_dot_product_attention(
        q, k, F.pad(v, (0, extra + pad)), dropout_p=dropout_p, scale=scale)
    return out[..., :width]


def _split(bias: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """bias as a sum of tensors of ``dtype``; the first one carries the gradient."""
    bias = bias.clamp(min=DROPPED[dtype])
    parts = [bias.to(dtype)]
    rest = bias.detach()
    for _ in range(CHANNELS[dtype] - 1):
        rest = rest - parts[-1].detach().to(rest.dtype)
        parts.append(rest.to(dtype))
    return parts


def query_key_free_attention(v: Tensor, bias: Tensor, kept: Tensor | None = None,
                             dropout_p: float = 0.0) -> Tensor:
    """A = softmax(1 b^T): sum_j softmax(b)_j v_j, the same for every query.

    Returns:
        (B, H, 1, D), to be broadcast over the queries.
    """
    weight = _centered(bias, kept).softmax(-1).to(v.dtype)
    weight = F.dropout(weight, dropout_p, training=dropout_p > 0)
    return weight[:, :, None] @ v


def gather_kv(qkv: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of the kept columns, gathered after the projection.

    Rows are picked from the projection's own contiguous buffer: on strided views of it the same
    gather takes several times as long.

    Args:
        qkv: (B, N, 3, H, D) contiguous; index (B, H, k).

    Returns:
        k, v: (B, H, k, D), contiguous.
    """
    batch, num_tokens, _, heads, width = qkv.shape
    sample = torch.arange(batch, device=index.device).view(-1, 1, 1)
    head = torch.arange(heads, device=index.device).view(1, -1, 1)
    row = (sample * num_tokens + index) * (3 * heads) + head
    row = torch.stack([row + heads, row + 2 * heads])
    kv = qkv.reshape(-1, width).index_select(0, row.flatten())
    return kv.view(2, *index.shape, width).unbind(0)


def project_kept_kv(x: Tensor, index: Tensor, weight: Tensor,
                    bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Keys and values of the kept columns, gathered before the projection.

    Each head projects its own k rows of x: 2 * (1 - k/N) * N * C^2 multiply-adds a sample less than
    ``gather_kv``, for H*k*C gathered numbers instead of 2*k*C.

    Args:
        x: (B, N, C); index (B, H, k).
        weight: rows of the key and value projections, (2*H*D, C); bias (2*H*D) or None.

    Returns:
        k, v: (B, H, k, D).
    """
    batch, num_tokens, dim = x.shape
    heads, kept = index.shape[1:]
    width = weight.shape[0] // (2 * heads)
    row = index + torch.arange(batch, device=index.device).view(-1, 1, 1) * num_tokens
    row = row.transpose(0, 1).reshape(heads, -1)
    x, weight = autocast_copy(x.reshape(-1, dim)), autocast_copy(weight)
    if own_backward(x, weight):
        out = _ProjectRows.apply(x, row, weight)
    else:
        out = _project_rows(x, row, weight)
    if bias is not None:
        out = out + bias.view(2, heads, width).transpose(0, 1).reshape(heads, 1, -1).to(out.dtype)
    k, v = out.view(heads, batch, kept, 2, width).permute(3, 1, 0, 2, 4).unbind(0)
    return k, v


def _project_rows(x: Tensor, row: Tensor, weight: Tensor) -> Tensor:
    """x (M, C), row (H, R), weight (2*H*D, C) -> keys and values of the rows, (H, R, 2*D)."""
    weight = _by_head(weight, len(row))
    out = [torch.bmm(_rows(x, row[part]), weight[part].transpose(1, 2))
           for part in _few_heads(x, row)]
    return out[0] if len(out) == 1 else torch.cat(out)


class _ProjectRows(torch.autograd.Function):
    """``_project_rows``; backward picks the H * R * C numbers of its rows again."""

    @staticmethod
    def forward(ctx, x, row, weight):
        ctx.save_for_backward(x, row, weight)
        return _project_rows(x, row, weight)

    @staticmethod
    def backward(ctx, grad):
        x, row, weight = ctx.saved_tensors
        if differentiated_again():
            return gradients(_project_rows, (x, row, weight), grad)
        weight = _by_head(weight, len(row))
        grad_x, grad_weight = torch.zeros_like(x), torch.empty_like(weight)
        for part in _few_heads(x, row):
            grad_weight[part] = torch.bmm(grad[part].transpose(1, 2), _rows(x, row[part]))
            grad_rows = torch.bmm(grad[part], weight[part])
            grad_x.index_add_(0, row[part].flatten(), grad_rows.flatten(0, 1))
        grad_weight = grad_weight.unflatten(1, (2, -1)).transpose(0, 1)
        return grad_x, None, grad_weight.reshape(-1, x.shape[1])


def _by_head(weight: Tensor, heads: int) -> Tensor:
    """(2*H*D, C), keys before values -> (H, 2*D, C)."""
    dim = weight.shape[1]
    return weight.view(2, heads, -1, dim).transpose(0, 1).reshape(heads, -1, dim)


def _rows(x: Tensor, row: Tensor) -> Tensor:
    return x.index_select(0, row.flatten()).view(*row.shape, x.shape[1])


def _few_heads(x: Tensor, row: Tensor) -> list[slice]:
    """Slices of as many heads at once as stay near the cache."""
    step = max(1, GATHERED_NUMBERS // max(1, row.shape[1] * x.shape[1]))
    return [slice(first, first + step) for first in range(0, row.shape[0], step)]
