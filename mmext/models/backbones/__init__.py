from mmext.models.backbones.bias_pruned_vit import BiasPrunedViT

__all__ = [
    'BiasPrunedViT',
]
