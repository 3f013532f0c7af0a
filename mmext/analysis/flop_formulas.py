"""Closed formulas of the multiply-accumulates (MACs) of the networks in mmext.

Convention: only convolutions, linear layers, matrix products and attention count; no softmax,
LayerNorm, GELU, top-k, additive biases or data movement. ``gflops`` turns MACs into the GFLOPs
that papers print, 2 x MACs / 1e9. The counter in ``mmext.analysis.flop_counter`` reaches the same
numbers by running the model; tests hold the two against each other.

Symbols: N tokens, d channels, H heads, L blocks, k_l kept key-value columns of block l.
All functions return an int (MACs of one image).
"""

import math

from mmext.models.backbones.base import resolve_arch
from mmext.models.backbones.bias_pruned_vit import ARCH_KEYS, ARCHS
from mmext.ops.column_selection import keep_ratio_schedule, num_kept


def vit_size(arch: str) -> tuple[int, int, int]:
    """(dim, depth, num_heads) of an architecture of ``BiasPrunedViT`` by name, e.g. 'deit-small'.
    """
    size = resolve_arch(arch, ARCHS, ARCH_KEYS)
    return size['embed_dim'], size['depth'], size['num_heads']


def gflops(macs: int) -> float:
    """GFLOPs = 2 x MACs / 1e9."""
    return 2 * macs / 1e9


def patch_grid(shape: tuple[int, int], patch: int = 16) -> tuple[int, int]:
    """Rows and columns of patches of an image (H, W), which is padded up to whole patches."""
    return math.ceil(shape[0] / patch), math.ceil(shape[1] / patch)


def conv_macs(in_chans: int, out_chans: int, kernel: int, out_positions: int) -> int:
    """Convolution with a square kernel. For a transposed one give its *input* positions."""
    return in_chans * out_chans * kernel * kernel * out_positions


# ---- attention layers, projections included -------------------------------------------------


def mhsa_macs(n: int, dim: int) -> int:
    """Softmax attention: q, k, v and output projections 4 N d^2, logits and values 2 N^2 d."""
    return 4 * n * dim**2 + 2 * n * n * dim


def mssa_macs(n: int, dim: int) -> int:
    """Multi-head subspace self-attention (CRATE): one shared projection and the output one."""
    return 2 * n * dim**2 + 2 * n * n * dim


def xca_macs(n: int, dim: int, num_heads: int) -> int:
    """Cross-covariance attention (XCiT)."""
    return 4 * n * dim**2 + 2 * n * dim**2 // num_heads


def tssa_macs(n: int, dim: int) -> int:
    """Token statistics self-attention (ToST): two projections and the second moment N d."""
    return 2 * n * dim**2 + n * dim


def dmsa_macs(n: int, dim: int, num_heads: int) -> int:
    """DMSA: TSSA plus the learned membership logits N d H."""
    return tssa_macs(n, dim) + n * dim * num_heads


def bias_attention_macs(n: int,
                        dim: int,
                        num_heads: int,
                        kept: int | None = None,
                        qk_free: bool = False,
                        gather_first: bool = False) -> int:
    """Key-bias attention.

    Args:
        kept: kept key-value columns k per head; None: all N.
        qk_free: no queries and keys; every query receives the same softmax(b) v.
        gather_first: keys and values are projected for the kept tokens only. Every head has its
            own kept tokens, so k d^2 / H MACs a head remain of each of the two projections.
    """
    kept = n if kept is None else kept
    bias = n * dim * num_heads
    if qk_free:
        return 2 * n * dim**2 + bias + n * dim
    kv_tokens = kept if gather_first else n
    return 2 * n * dim**2 + 2 * kv_tokens * dim**2 + bias + 2 * n * kept * dim


def mlp_macs(n: int, dim: int, mlp_ratio: float = 4.0) -> int:
    return 2 * n * dim * int(dim * mlp_ratio)


def block_macs(n: int,
               dim: int,
               num_heads: int,
               *,
               key_bias: bool = True,
               kept: int | None = None,
               qk_free: bool = False,
               gather_first: bool = False,
               mlp_ratio: float = 4.0) -> int:
    """One transformer block: full 12 N d^2 + 2 N^2 d (plain), with key bias + N d H,
    pruned 12 N d^2 + N d H + 2 N k d, query-key-free 10 N d^2 + N d H + N d."""
    if not key_bias:
        if kept is not None or qk_free:
            raise ValueError('kept and qk_free need the key bias; set key_bias=True')
        attention = mhsa_macs(n, dim)
    else:
        attention = bias_attention_macs(n, dim, num_heads, kept, qk_free, gather_first)
    return attention + mlp_macs(n, dim, mlp_ratio)


def vit_macs(shape: tuple[int, int],
             dim: int,
             depth: int,
             num_heads: int,
             *,
             key_bias: bool = False,
             keep_ratio=None,
             qk_free_last: int = 0,
             gather_first: bool = False,
             prefix_tokens: int = 1,
             num_classes: int = 1000,
             patch: int = 16,
             in_chans: int = 3,
             mlp_ratio: float = 4.0) -> int:
    """A plain ViT / DeiT / bias-pruned ViT with its linear head (``num_classes=0``: no head).

    Args:
        shape: image (H, W).
        keep_ratio: see ``keep_ratio_schedule``; anything but None implies the key bias.
        prefix_tokens: 1 with class token, 0 without (dense backbones).
        qk_free_last: number of last blocks without queries and keys.
    """
    h, w = patch_grid(shape, patch)
    n = h * w + prefix_tokens
    key_bias = key_bias or keep_ratio is not None or qk_free_last > 0
    total = conv_macs(in_chans, dim, patch, h * w) + dim * num_classes
    for i, ratio in enumerate(keep_ratio_schedule(keep_ratio, depth)):
        total += block_macs(
            n,
            dim,
            num_heads,
            key_bias=key_bias,
            kept=None if ratio is None else num_kept(ratio, n),
            qk_free=i >= depth - qk_free_last,
            gather_first=gather_first,
            mlp_ratio=mlp_ratio)
    return total


def tost_macs(shape: tuple[int, int],
              dim: int,
              depth: int,
              num_heads: int,
              *,
              attention: str = 'dmsa',
              cls_blocks: int = 2,
              num_classes: int = 1000,
              patch: int = 16,
              pos_hidden: int = 32) -> int:
    """ToST backbone (XCiT's) with ``attention`` in 'tssa', 'dmsa', 'mssa', 'mhsa', 'xca'.

    Convolutional patch embedding (four 3x3 convolutions of stride 2 for patch 16, three for
    patch 8), Fourier position encoding with a 1x1 convolution, ``depth`` blocks, then
    class-attention blocks in which only the class token queries and passes the MLP.
    """
    h, w = patch_grid(shape, patch)
    n = h * w
    widths = [dim // 8, dim // 4, dim // 2, dim] if patch == 16 else [dim // 4, dim // 2, dim]
    total, in_chans = 0, 3
    rows, columns = shape
    for width in widths:
        rows, columns = -(-rows // 2), -(-columns // 2)  # stride 2 rounds up
        total += conv_macs(in_chans, width, 3, rows * columns)
        in_chans = width
    total += conv_macs(2 * pos_hidden, dim, 1, n)
    layer = {
        'tssa': tssa_macs(n, dim),
        'dmsa': dmsa_macs(n, dim, num_heads),
        'mssa': mssa_macs(n, dim),
        'mhsa': mhsa_macs(n, dim),
        'xca': xca_macs(n, dim, num_heads),
    }
    if attention not in layer:
        raise ValueError(f'attention {attention!r} is unknown; choose one of {sorted(layer)}')
    total += depth * (layer[attention] + mlp_macs(n, dim))
    # class attention: qkv of all tokens, one query row, output projection and MLP of one token
    total += cls_blocks * (3 * (n + 1) * dim**2 + 2 * (n + 1) * dim + dim**2 + mlp_macs(1, dim))
    return total + dim * num_classes


# ---- Mask R-CNN on a Simple Feature Pyramid (ViTDet) ----------------------------------------


def sfp_macs(grid: tuple[int, int], dim: int, out_chans: int = 256) -> int:
    """Simple Feature Pyramid: x4, x2, x1, x1/2 of the one map, 1x1 and 3x3 convolution each."""
    n = grid[0] * grid[1]
    half = (grid[0] // 2) * (grid[1] // 2)
    up4 = conv_macs(dim, dim // 2, 2, n) + conv_macs(dim // 2, dim // 4, 2, 4 * n)
    up2 = conv_macs(dim, dim // 2, 2, n)
    total = up4 + up2
    for in_chans, positions in ((dim // 4, 16 * n), (dim // 2, 4 * n), (dim, n), (dim, half)):
        total += conv_macs(in_chans, out_chans, 1, positions)
        total += conv_macs(out_chans, out_chans, 3, positions)
    return total


def rpn_macs(grid: tuple[int, int], chans: int = 256, num_convs: int = 2, anchors: int = 3) -> int:
    """Region proposal network over the five levels of strides 4 to 64."""
    h, w = grid
    half = (h // 2, w // 2)
    quarter = ((half[0] + 1) // 2, (half[1] + 1) // 2)  # max pooling with kernel 1, stride 2
    positions = 21 * h * w + half[0] * half[1] + quarter[0] * quarter[1]
    per_position = num_convs * 9 * chans * chans + chans * anchors * (1 + 4)
    return positions * per_position


def box_head_macs(proposals: int = 1000,
                  chans: int = 256,
                  num_convs: int = 4,
                  fc: int = 1024,
                  classes: int = 80,
                  roi: int = 7) -> int:
    """Four 3x3 convolutions on 7x7, one fully connected layer, class and box outputs."""
    convs = num_convs * conv_macs(chans, chans, 3, roi * roi)
    return proposals * (convs + roi * roi * chans * fc + fc * (classes + 1) + fc * classes * 4)


def mask_head_macs(boxes: int = 100,
                   chans: int = 256,
                   num_convs: int = 4,
                   classes: int = 80,
                   roi: int = 14) -> int:
    """Four 3x3 convolutions on 14x14, a 2x2 deconvolution and a 1x1 convolution per class."""
    convs = num_convs * conv_macs(chans, chans, 3, roi * roi)
    deconv = conv_macs(chans, chans, 2, roi * roi)
    return boxes * (convs + deconv + conv_macs(chans, classes, 1, 4 * roi * roi))


def vitdet_macs(shape: tuple[int, int],
                dim: int,
                depth: int,
                num_heads: int,
                *,
                key_bias: bool = False,
                keep_ratio=None,
                proposals: int = 1000,
                boxes: int = 100,
                patch: int = 16) -> dict[str, int]:
    """Mask R-CNN with a global-attention ViT and a Simple Feature Pyramid, by part.

    Returns a dict with keys backbone, neck, rpn_head, bbox_head, mask_head.
    """
    grid = patch_grid(shape, patch)
    backbone = vit_macs(
        shape,
        dim,
        depth,
        num_heads,
        key_bias=key_bias,
        keep_ratio=keep_ratio,
        prefix_tokens=0,
        num_classes=0,
        patch=patch)
    return {
        'backbone': backbone,
        'neck': sfp_macs(grid, dim),
        'rpn_head': rpn_macs(grid),
        'bbox_head': box_head_macs(proposals),
        'mask_head': mask_head_macs(boxes),
    }
