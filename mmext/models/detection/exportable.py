"""mmdet's two-stage prediction as one graph: an image in, boxes, scores, labels and masks out.

mmdet's own ``predict`` takes Python branches on what it finds and lists of samples, which no
exporter follows. Here the same modules and settings of one detector are called on one image of a
fixed canvas; only numbers of boxes vary. NMS and RoIAlign are torchvision's, for which ONNX has
operators.
"""

import torch
from mmdet.models import RPNHead, StandardRoIHead, TwoStageDetector
from torch import Tensor, nn
from torchvision.ops import nms, roi_align

from .data_preprocessor import MaskedDetDataPreprocessor
from .padding import MaskedRoIExtractor, extend_border


class ExportableDetector(nn.Module):
    """A Faster or Mask R-CNN of mmdet on one image.

    Args:
        model: ``TwoStageDetector`` with ``RPNHead``, ``StandardRoIHead`` and hard NMS.

    Attributes:
        classes: how many the labels tell apart.
        outputs: names of what ``forward`` returns.
        facts: what those who use the graph must know of it. ``mean`` and ``std`` are those that
            are left to do: none, normalization is part of the graph.

    Raises:
        ValueError: another detector, or one whose parts compute something else.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        refuse_others(model)
        roi = model.roi_head
        self.model, self.classes = model, roi.bbox_head.num_classes
        self.masked = isinstance(model.data_preprocessor, MaskedDetDataPreprocessor)
        self.with_mask = roi.with_mask
        self.outputs = ['boxes', 'scores', 'labels', *(['masks'] if self.with_mask else [])]
        self.facts = {'channel_order': 'RGB', 'range': [0, 255], 'mean': [0.] * 3,
                      'std': [1.] * 3, 'mask_threshold': roi.test_cfg.get('mask_thr_binary', .5)}

    def forward(self, image: Tensor, extent: Tensor) -> tuple[Tensor, ...]:
        """One image on its canvas -> what was found on it, by falling score.

        Args:
            image: (1, 3, H, W) float, RGB, 0 to 255, at the top left of the canvas.
            extent: (2,) int64, height and width of the image; the rest of the canvas is ignored.

        Returns:
            boxes (n, 4) xyxy in pixels of the canvas, scores (n,), labels (n,) int64 and, with a
            mask head, masks (n, h, w): the probability of the object in its box.
        """
        features = self.model.extract_feat(self.prepare(image, extent))
        limits = extent.flip(0).repeat(2).to(image.dtype)  # w, h, w, h
        boxes, scores, labels = self.detect(features, self.propose(features, limits), limits)
        if not self.with_mask:
            return boxes, scores, labels
        return boxes, scores, labels, self.segment(features, boxes, labels)

    def prepare(self, image: Tensor, extent: Tensor) -> Tensor:
        """What the data preprocessor does: order of channels, normalization, padding."""
        settings = self.model.data_preprocessor
        if not settings._channel_conversion:  # the model was trained on BGR
            image = image.flip(1)
        if settings._enable_normalize:
            image = (image - settings.mean) / settings.std
        height, width = image.shape[-2:]
        valid = ((torch.arange(height, device=image.device) < extent[0])[:, None]
                 & (torch.arange(width, device=image.device) < extent[1]))
        image = torch.where(valid, image, float(settings.pad_value))
        return torch.cat([image, valid[None, None].to(image)], 1) if self.masked else image

    def propose(self, features: tuple[Tensor, ...], limits: Tensor) -> Tensor:
        """Proposals (n, 4) of the RPN: the best of each level, NMS by level, the best of all."""
        head = self.model.rpn_head
        cfg = head.test_cfg
        anchors = head.prior_generator.grid_priors(
            [tuple(x.shape[-2:]) for x in features], dtype=limits.dtype, device=limits.device)
        boxes, scores, levels = [], [], []
        for level, (logits, deltas, anchor) in enumerate(
                zip(*head(features), anchors, strict=True)):
            score = logits[0].permute(1, 2, 0).flatten().sigmoid()
            delta = deltas[0].permute(1, 2, 0).reshape(-1, 4)
            if 0 < cfg.get('nms_pre', -1) < len(anchor):
                score, best = score.topk(cfg.nms_pre)
                delta, anchor = delta[best], anchor[best]
            boxes.append(clip(head.bbox_coder.decode(anchor, delta), limits))
            scores.append(score)
            levels.append(torch.full_like(score, level))
        boxes, scores, levels = torch.cat(boxes), torch.cat(scores), torch.cat(levels)
        sides = boxes[:, 2:] - boxes[:, :2]
        # an anchor of padding has score 0, see MaskedRPNHead
        fit = (sides > cfg.get('min_bbox_size', -1)).all(1) & (scores > 0)
        kept = nms_by_group(boxes, scores, levels, fit, cfg.nms.iou_threshold, cfg.max_per_img)
        return boxes[kept]

    def detect(self, features: tuple[Tensor, ...], proposals: Tensor, limits: Tensor
               ) -> tuple[Tensor, Tensor, Tensor]:
        """Boxes (n, 4), scores (n,) and labels (n,) of the box head, after NMS by class."""
        roi = self.model.roi_head
        head, cfg = roi.bbox_head, roi.test_cfg
        logits, deltas = head(pool(roi.bbox_roi_extractor, features, proposals))
        scores = logits.softmax(-1)[:, :-1]
        classes = scores.shape[1]
        each = 1 if head.reg_class_agnostic else classes
        boxes = clip(head.bbox_coder.decode(
            proposals.repeat_interleave(each, dim=0), deltas.reshape(-1, 4)), limits)
        boxes = boxes.reshape(-1, each, 4).expand(-1, classes, 4).reshape(-1, 4)
        labels = torch.arange(classes, device=scores.device).expand_as(scores).reshape(-1)
        scores = scores.reshape(-1)
        kept = nms_by_group(boxes, scores, labels, scores > cfg.score_thr,
                            cfg.nms.iou_threshold, cfg.max_per_img)
        return boxes[kept], scores[kept], labels[kept]

    def segment(self, features: tuple[Tensor, ...], boxes: Tensor, labels: Tensor) -> Tensor:
        """Probabilities (n, h, w) of the mask head for boxes (n, 4) of classes ``labels``."""
        roi = self.model.roi_head
        # one more box, dropped again: GroupNorm's operators in ONNX fail on none
        boxes = torch.cat([boxes, boxes.new_zeros(1, 4)])
        masks = roi.mask_head(pool(roi.mask_roi_extractor, features, boxes)).sigmoid()[:-1]
        if roi.mask_head.class_agnostic:
            return masks[:, 0]
        return masks.gather(
            1, labels[:, None, None, None].expand(-1, 1, *masks.shape[-2:])).squeeze(1)


def refuse_others(model: nn.Module) -> None:
    """ValueError that names what :class:`ExportableDetector` does not compute."""
    if not isinstance(model, TwoStageDetector) or hasattr(model, 'semantic_head'):
        raise ValueError(f'--detector: {type(model).__name__} is not supported, only Faster and '
                         'Mask R-CNN; export --neck and write its heads beside it')
    roi = model.roi_head
    for part, name, kind in ((model.rpn_head, 'rpn_head', RPNHead),
                             (roi, 'roi_head', StandardRoIHead)):
        # their subclasses predict otherwise, but for those of this package
        if type(part) is not kind and not type(part).__module__.startswith('mmext.'):
            raise ValueError(f'--detector: {name} {type(part).__name__} is not supported, only '
                             f'{kind.__name__}')
    if roi.with_shared_head or roi.bbox_head.custom_cls_channels or not roi.bbox_head.with_reg:
        raise ValueError('--detector: a roi_head with a shared head, its own class activation or '
                         'without boxes is not supported')
    for name, cfg in (('rpn', model.rpn_head.test_cfg), ('rcnn', roi.test_cfg)):
        if cfg.nms.get('type', 'nms') != 'nms':
            raise ValueError(f'--detector: test_cfg.{name}.nms.type={cfg.nms.type!r} is not '
                             "supported, only 'nms'")


def clip(boxes: Tensor, limits: Tensor) -> Tensor:
    return torch.minimum(boxes.clamp(min=0), limits)


def nms_by_group(boxes: Tensor, scores: Tensor, groups: Tensor, fit: Tensor, threshold: float,
                 most: int) -> Tensor:
    """Indices of the kept boxes, by falling score, at most ``most``.

    Boxes (n, 4) of a group suppress each other above the IoU ``threshold``; as in mmcv the groups
    are shifted apart. Only those where ``fit`` (n,) is True take part.
    """
    index = fit.nonzero().squeeze(1)
    boxes, scores, groups = boxes[index], scores[index], groups[index]
    # the zero is for no boxes at all, which have no maximum
    apart = torch.cat([boxes.flatten(), boxes.new_zeros(1)]).max() + 1
    kept = nms(boxes + (groups.to(boxes) * apart)[:, None], scores, threshold)
    return index[kept[:most]]


def pool(extractor: nn.Module, features: tuple[Tensor, ...], boxes: Tensor) -> Tensor:
    """RoIAlign of each box (n, 4) on the level that fits its size -> (n, C, side, side)."""
    rois = torch.cat([torch.zeros_like(boxes[:, :1]), boxes], 1)
    layers = extractor.roi_layers
    features = features[:len(layers)]
    if isinstance(extractor, MaskedRoIExtractor):
        features = tuple(map(extend_border, features))
    levels = extractor.map_roi_levels(rois, len(layers))
    pooled = features[0].new_zeros(boxes.shape[0], features[0].shape[1], *layers[0].output_size)
    for level, (layer, feature) in enumerate(zip(layers, features, strict=True)):
        index = (levels == level).nonzero().squeeze(1)
        pooled = pooled.index_copy(0, index, roi_align(
            feature, rois[index], layer.output_size, layer.spatial_scale, layer.sampling_ratio,
            layer.aligned))
    return pooled
