from mmext.models.backbones import DMST, BiasPrunedViT, StructuredPrunedViT, TimmViT, ToST
from mmext.models.necks import SimpleFeaturePyramid

__all__ = [
    'DMST',
    'BiasPrunedViT',
    'SimpleFeaturePyramid',
    'StructuredPrunedViT',
    'TimmViT',
    'ToST',
]
