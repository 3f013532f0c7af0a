from mmext.models.backbones.bias_pruned_vit import BiasPrunedViT
from mmext.models.backbones.dmst import DMST, ToST

__all__ = [
    'DMST',
    'BiasPrunedViT',
    'ToST',
]
