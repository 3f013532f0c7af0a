from mmext.models.backbones.bias_pruned_vit import BiasPrunedViT
from mmext.models.backbones.dmst import DMST, ToST
from mmext.models.backbones.structured_pruned_vit import StructuredPrunedViT
from mmext.models.backbones.timm_vit import TimmViT

__all__ = [
    'DMST',
    'BiasPrunedViT',
    'StructuredPrunedViT',
    'TimmViT',
    'ToST',
]
