from mmext.layers.biased_attention import BiasedAttention

__all__ = [
    'BiasedAttention',
]
