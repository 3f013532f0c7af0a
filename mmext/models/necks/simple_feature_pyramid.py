"""Simple Feature Pyramid of ViTDet, for any backbone that gives one map.

Li et al., *Exploring Plain Vision Transformer Backbones for Object Detection*
(arXiv:2203.16527, Sec. 3); official code: detectron2 ``projects/ViTDet``.

Deliberate differences from the official code: the 1/2 level pools with ``ceil_mode``, so that
odd maps keep their last row and column (official input is always 1024²); every map handed on is
contiguous NCHW, because mmcv's compiled CPU RoIAlign is silently wrong on other layouts; other
norms than LayerNorm can be chosen.
"""

from collections.abc import Sequence

from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule
from timm.layers import LayerNorm2d
from torch import Tensor, nn

from mmext.registry import MODELS

# LayerNorm over the channels of (B, C, H, W), for `norm_cfg=dict(type='mmext.LN2d', eps=1e-6)`
# here and in mmdet's heads.
MODELS.register_module(name='LN2d', module=LayerNorm2d)

SCALES = (4, 2, 1, 0.5)
LAYER_NORM = {'type': 'mmext.LN2d', 'eps': 1e-6}


@MODELS.register_module()
class SimpleFeaturePyramid(BaseModule):
    """Builds every pyramid level from the backbone's last map alone.

    ========  =====================================================
    scale     layers, from a map of d channels and stride s
    ========  =====================================================
    4         ConvT 2x2 d->d/2, norm, GELU, ConvT 2x2 d/2->d/4; stride s/4
    2         ConvT 2x2 d->d/2; stride s/2
    1         none; stride s
    1/2       max-pool 2x2; stride 2s
    ========  =====================================================

    then each level: conv 1x1 to ``out_channels``, norm, conv 3x3, norm. Extra levels are max-pools
    (kernel 1, stride 2) of the last level.

    Args:
        in_channels: width d of the backbone's map.
        out_channels: width of every level.
        scale_factors: any of 4, 2, 1, 1/2, in falling order.
        num_outs: number of levels; those beyond ``scale_factors`` are extra levels. ``None``:
            one extra level.
        in_stride: stride of the backbone's map (its patch size).
        strides: what anchor generators and RoI extractors of the config assume; checked
            against the strides that come out.
        norm_cfg: norm of every conv, ``None`` for convs with bias and no norm.
        masked: the backbone's map is zero where there is padding: no level reads it, and every
            map handed on is zero there too. The image's own cells then do not depend on the
            canvas.
        init_cfg: mmengine's initialization.

    Raises:
        ValueError: for a scale, width or stride that does not work out.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int = 256,
        scale_factors: Sequence[float] = SCALES,
        num_outs: int | None = None,
        in_stride: int = 16,
        strides: Sequence[int] | None = None,
        norm_cfg: dict | None = LAYER_NORM,
        masked: bool = False,
        init_cfg: dict | None = None,
    ):
        super().__init__(init_cfg)
        scale_factors = tuple(scale_factors)
        if not scale_factors or any(s not in SCALES for s in scale_factors):
            raise ValueError(f'scale_factors={scale_factors}: every scale must be one of {SCALES}')
        if list(scale_factors) != sorted(set(scale_factors), reverse=True):
            raise ValueError(
                f'scale_factors={scale_factors} must fall strictly: levels go from the finest to '
                'the coarsest')
        num_outs = len(scale_factors) + 1 if num_outs is None else num_outs
        if num_outs < len(scale_factors):
            raise ValueError(
                f'num_outs={num_outs} is less than the {len(scale_factors)} scale_factors')
        divisor = {4: 4, 2: 2}.get(scale_factors[0], 1)
        if in_channels % divisor:
            raise ValueError(
                f'in_channels={in_channels} must be a multiple of {divisor} for scale '
                f'{scale_factors[0]}, which divides the width')
        self.strides = output_strides(in_stride, scale_factors, num_outs)
        if strides is not None and tuple(strides) != self.strides:
            raise ValueError(
                f'strides={tuple(strides)} do not match the levels made: in_stride={in_stride} '
                f'over scale_factors={scale_factors} with num_outs={num_outs} gives '
                f'{self.strides}. Set in_stride to the patch size of the backbone and the same '
                'strides in anchor_generator and featmap_strides')
        self.in_channels = in_channels
        self.scale_factors = scale_factors
        self.masked = masked
        self.num_extra = num_outs - len(scale_factors)

        def norm(channels: int) -> list[nn.Module]:
            return [] if norm_cfg is None else [build_norm_layer(norm_cfg, channels)[1]]

        bias = norm_cfg is None
        self.levels = nn.ModuleList()
        for scale in scale_factors:
            width = in_channels
            if scale == 4:
                width = in_channels // 4
                resample = [
                    nn.ConvTranspose2d(in_channels, in_channels // 2, 2, stride=2),
                    *norm(in_channels // 2),
                    nn.GELU(),
                    nn.ConvTranspose2d(in_channels // 2, width, 2, stride=2),
                ]
            elif scale == 2:
                width = in_channels // 2
                resample = [nn.ConvTranspose2d(in_channels, width, 2, stride=2)]
            elif scale == 1:
                resample = []
            else:
                resample = [nn.MaxPool2d(2, stride=2, ceil_mode=True)]
            self.levels.append(
                nn.Sequential(
                    *resample,
                    nn.Conv2d(width, out_channels, 1, bias=bias),
                    *norm(out_channels),
                    nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=bias),
                    *norm(out_channels),
                ))

    def forward(self, inputs: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
        """``inputs``: the backbone's maps, of which the last (B, d, h, w) is used.

        Returns ``num_outs`` contiguous maps (B, out_channels, ceil(h * scale), ceil(w * scale)).
        """
        x = inputs if isinstance(inputs, Tensor) else inputs[-1]
        if x.dim() != 4 or x.shape[1] != self.in_channels:
            raise ValueError(
                f'SimpleFeaturePyramid(in_channels={self.in_channels}) got a map of shape '
                f"{tuple(x.shape)}; it needs (B, {self.in_channels}, h, w): out_type='featmap' in "
                'the backbone and its width as in_channels')
        if self.masked:
            outs = [self.run_masked(level, scale, x).contiguous()
                    for level, scale in zip(self.levels, self.scale_factors, strict=True)]
        else:
            outs = [level(x).contiguous() for level in self.levels]
        for _ in range(self.num_extra):
            outs.append(nn.functional.max_pool2d(outs[-1], 1, stride=2))
        return tuple(outs)


    @staticmethod
    def run_masked(level: nn.Sequential, scale: float, x: Tensor) -> Tensor:
        """A level whose 3x3 convolution and pooling do not read cells that are zero in ``x``."""
        valid = (x != 0).any(1, keepdim=True)
        if scale == 0.5:  # the pool's own border is -inf
            x = x.masked_fill(~valid, float('-inf'))
            valid = nn.functional.max_pool2d(valid.to(x.dtype), 2, 2, ceil_mode=True) > 0
        elif scale > 1:
            valid = valid.repeat_interleave(int(scale), 2).repeat_interleave(int(scale), 3)
        for layer in level:
            if isinstance(layer, nn.Conv2d):
                x = x.masked_fill(~valid, 0)
            x = layer(x)
        return x.masked_fill(~valid, 0)


def output_strides(
    in_stride: int, scale_factors: Sequence[float], num_outs: int
) -> tuple[int, ...]:
    """Strides of the pyramid's levels, finest first.

    Raises:
        ValueError: where a stride is no whole number (patch 14 at scale 4).
    """
    strides = [in_stride / scale for scale in scale_factors]
    if any(stride != int(stride) for stride in strides):
        raise ValueError(
            f'in_stride={in_stride} over scale_factors={tuple(scale_factors)} gives strides '
            f'{strides}, which are not whole numbers; leave the finest scale out or use another '
            'patch size')
    strides = [int(stride) for stride in strides]
    while len(strides) < num_outs:
        strides.append(strides[-1] * 2)
    return tuple(strides)
