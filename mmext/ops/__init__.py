from mmext.ops.coding_rate import (
    coding_rate_ceiling,
    exact_coding_rate,
    rate_reduction,
    rate_reduction_reference,
    variational_coding_rate,
)
from mmext.ops.column_selection import (
    Columns,
    KeepRule,
    choose_columns,
    columns_to_mask,
    keep_ratio_schedule,
    keep_rules,
    num_kept,
    threshold_columns,
    top_k_columns,
)
from mmext.ops.key_bias import (
    channel_bias_attention,
    gather_kv,
    key_bias_attention,
    project_kept_kv,
    query_key_free_attention,
    reference_key_bias_attention,
)
from mmext.ops.position_grid import resize_position_grid, sincos_position_grid
from mmext.ops.rope import apply_rope
from mmext.ops.thresholding import soft_threshold
from mmext.ops.token_merging import (
    bipartite_soft_matching,
    merge_schedule,
    merge_tokens,
    scaled_r,
    track_tokens,
    unmerge_tokens,
)
from mmext.ops.token_statistics import (
    dmsa,
    dmsa_reference,
    membership_logits,
    memberships,
    tssa,
    tssa_reference,
)

__all__ = [
    'Columns',
    'KeepRule',
    'apply_rope',
    'bipartite_soft_matching',
    'channel_bias_attention',
    'choose_columns',
    'coding_rate_ceiling',
    'columns_to_mask',
    'dmsa',
    'dmsa_reference',
    'exact_coding_rate',
    'gather_kv',
    'keep_ratio_schedule',
    'keep_rules',
    'key_bias_attention',
    'membership_logits',
    'memberships',
    'merge_schedule',
    'merge_tokens',
    'num_kept',
    'project_kept_kv',
    'query_key_free_attention',
    'rate_reduction',
    'rate_reduction_reference',
    'reference_key_bias_attention',
    'resize_position_grid',
    'scaled_r',
    'sincos_position_grid',
    'soft_threshold',
    'threshold_columns',
    'top_k_columns',
    'track_tokens',
    'tssa',
    'tssa_reference',
    'unmerge_tokens',
    'variational_coding_rate',
]
