from mmext.layers.biased_attention import BiasedAttention
from mmext.layers.dmsa import DMSA, DMSA_VARIANTS
from mmext.layers.gated_mhsa import GatedMHSA
from mmext.layers.mssa import MSSA
from mmext.layers.query_key_free import QueryKeyFreeAttention
from mmext.layers.relative_attention import RelativeBiasedAttention
from mmext.layers.tssa import TSSA

__all__ = [
    'DMSA',
    'DMSA_VARIANTS',
    'MSSA',
    'TSSA',
    'BiasedAttention',
    'GatedMHSA',
    'QueryKeyFreeAttention',
    'RelativeBiasedAttention',
]
