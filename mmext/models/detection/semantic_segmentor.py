"""Semantic segmentation in mmdet's scope: backbone, neck and mmdet's semantic head, no more.

mmdet has the head (Kirillov et al., *Panoptic Feature Pyramid Networks*, arXiv:1901.02446), the
data sets and the metric, but no model that holds a semantic head alone.
"""

from mmdet.models.detectors.base import BaseDetector
from mmdet.structures import SampleList
from mmengine.structures import PixelData
from torch import Tensor

from mmext.registry import MODELS


@MODELS.register_module()
class SemanticSegmentor(BaseDetector):
    """A label for every pixel.

    mmdet's ``PanopticFPNHead`` has a channel for each stuff class and one more for all things
    together. Here every class is stuff: ``num_things_classes=0`` and ``num_stuff_classes`` the
    number of classes. No pixel is ever labeled with the last channel, and it is left out of the
    answer.

    Args:
        backbone, semantic_head, neck: configs of the parts.
        train_cfg, test_cfg: taken for the sake of mmdet's tools; nothing is configured by them.
        data_preprocessor: config; with ``pad_seg=True``, ``seg_pad_value=255`` where images of a
            batch differ in size.
        init_cfg: mmengine's initialization.

    Raises:
        ValueError: the head merges things into one class.
    """

    def __init__(self, backbone: dict, semantic_head: dict, neck: dict | None = None,
                 train_cfg: dict | None = None, test_cfg: dict | None = None,
                 data_preprocessor: dict | None = None, init_cfg: dict | None = None):
        super().__init__(data_preprocessor, init_cfg)
        self.backbone = MODELS.build(backbone)
        if neck is not None:
            self.neck = MODELS.build(neck)
        self.semantic_head = MODELS.build(semantic_head)
        if self.semantic_head.num_things_classes:
            raise ValueError(
                f'semantic_head.num_things_classes={self.semantic_head.num_things_classes} would '
                'merge these classes into one; set it to 0 and num_stuff_classes to the number of '
                'all classes')

    def extract_feat(self, batch_inputs: Tensor) -> tuple[Tensor, ...]:
        """Images (B, 3, H, W) -> the maps of backbone and neck."""
        x = self.backbone(batch_inputs)
        return self.neck(x) if self.with_neck else x

    def loss(self, batch_inputs: Tensor, batch_data_samples: SampleList) -> dict:
        """``loss_seg`` against ``gt_sem_seg`` of the samples, labels (1, H, W), 255 ignored."""
        return self.semantic_head.loss(self.extract_feat(batch_inputs), batch_data_samples)

    def predict(self, batch_inputs: Tensor, batch_data_samples: SampleList,
                rescale: bool = True) -> SampleList:
        """The samples with ``pred_sem_seg``: labels (1, h, w) of the original image.

        With ``rescale=False`` they are of the size of the padded input.
        """
        metas = [sample.metainfo for sample in batch_data_samples]
        features = self.extract_feat(batch_inputs)
        classes = self.semantic_head.num_stuff_classes
        for sample, logits in zip(
                batch_data_samples, self.semantic_head.predict(features, metas, rescale),
                strict=True):
            sample.pred_sem_seg = PixelData(sem_seg=logits[:classes].argmax(0, keepdim=True))
        return batch_data_samples

    def _forward(self, batch_inputs: Tensor, batch_data_samples=None) -> Tensor:
        """Logits (B, classes + 1, h, w) at the stride of the finest level."""
        return self.semantic_head(self.extract_feat(batch_inputs))['seg_preds']
