from mmext.models.backbones import BiasPrunedViT
from mmext.models.data_preprocessors import build_masked_det_data_preprocessor
from mmext.models.necks import SimpleFeaturePyramid

__all__ = [
    'BiasPrunedViT',
    'SimpleFeaturePyramid',
    'build_masked_det_data_preprocessor',
]
