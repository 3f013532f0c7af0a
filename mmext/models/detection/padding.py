"""Detection heads whose results do not depend on the canvas that an image is padded to.

Needs maps that are exactly zero where there is padding, as ``SimpleFeaturePyramid`` hands them on
with ``masked=True`` (its norms leave no image cell all zero). What a head would read beyond the
image is then what it reads beyond the canvas: zeros before a convolution, the border's own values
before RoIAlign.
"""

import torch
import torch.nn.functional as F
from mmdet.models import RPNHead, SingleRoIExtractor
from mmengine.structures import InstanceData
from torch import Tensor

from mmext.registry import MODELS

NEVER = -1e4  # a logit whose sigmoid is 0 in fp32, and that fp16 holds


@MODELS.register_module()
class MaskedRPNHead(RPNHead):
    """mmdet's RPN that neither reads padding nor proposes boxes from it. Arguments are mmdet's."""

    def forward_single(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """A map (B, C, h, w) -> scores (B, A, h, w) and deltas (B, 4 A, h, w) of A anchors."""
        valid = valid_cells(x)
        convs = self.rpn_conv if self.num_convs > 1 else [self.rpn_conv]
        for conv in convs:
            x = F.relu(conv(x)) * valid
        return self.rpn_cls(x).masked_fill(~valid, NEVER), self.rpn_reg(x)

    def _bbox_post_process(self, results: InstanceData, *args, **kwargs) -> InstanceData:
        """mmdet's, without the anchors of padding that fill up a level of few cells."""
        return super()._bbox_post_process(results[results.scores > 0], *args, **kwargs)


@MODELS.register_module()
class MaskedRoIExtractor(SingleRoIExtractor):
    """mmdet's extractor on maps that go on beyond the image as they end. Arguments are mmdet's."""

    def forward(self, feats: tuple[Tensor, ...], rois: Tensor,
                roi_scale_factor: float | None = None) -> Tensor:
        """Maps (B, C, h, w) of all levels, rois (n, 5) -> (n, C, side, side)."""
        return super().forward(tuple(map(extend_border, feats)), rois, roi_scale_factor)


def valid_cells(x: Tensor) -> Tensor:
    """(B, C, h, w) -> (B, 1, h, w) bool, False where every channel is zero."""
    return (x != 0).any(1, keepdim=True)


def extend_border(x: Tensor) -> Tensor:
    """Repeat the last row and column of the image once beyond it, as RoIAlign does at the map's
    own border: its bilinear samples read one cell further."""
    for axis in (2, 3):
        before = torch.cat([torch.zeros_like(x.narrow(axis, 0, 1)),
                            x.narrow(axis, 0, x.shape[axis] - 1)], axis)
        x = torch.where(valid_cells(x), x, before)
    return x
