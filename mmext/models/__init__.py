from mmext.models.backbones import DMST, BiasPrunedViT, StructuredPrunedViT, ToST
from mmext.models.data_preprocessors import build_masked_det_data_preprocessor
from mmext.models.necks import SimpleFeaturePyramid
from mmext.models.segmentors import build_semantic_segmentor

__all__ = [
    'DMST',
    'BiasPrunedViT',
    'SimpleFeaturePyramid',
    'StructuredPrunedViT',
    'ToST',
    'build_masked_det_data_preprocessor',
    'build_semantic_segmentor',
]
