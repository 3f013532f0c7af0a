from mmext.models.backbones import DMST, BiasPrunedViT, StructuredPrunedViT, TimmViT, ToST
from mmext.models.data_preprocessors import build_masked_det_data_preprocessor
from mmext.models.necks import SimpleFeaturePyramid

__all__ = [
    'DMST',
    'BiasPrunedViT',
    'SimpleFeaturePyramid',
    'StructuredPrunedViT',
    'TimmViT',
    'ToST',
    'build_masked_det_data_preprocessor',
]
