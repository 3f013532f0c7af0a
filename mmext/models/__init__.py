from mmext.models.backbones import DMST, BiasPrunedViT, StructuredPrunedViT, ToST
from mmext.models.data_preprocessors import build_masked_det_data_preprocessor
from mmext.models.heads import build_frozen_linear_cls_head
from mmext.models.necks import SimpleFeaturePyramid

__all__ = [
    'DMST',
    'BiasPrunedViT',
    'SimpleFeaturePyramid',
    'StructuredPrunedViT',
    'ToST',
    'build_frozen_linear_cls_head',
    'build_masked_det_data_preprocessor',
]
