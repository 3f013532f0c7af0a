from mmext.ops.column_selection import (
    columns_to_mask,
    keep_ratio_schedule,
    num_kept,
    threshold_columns,
    top_k_columns,
)
from mmext.ops.key_bias_attention import (
    channel_bias_attention,
    gather_kv,
    key_bias_attention,
    project_kept_kv,
    query_key_free_attention,
    reference_key_bias_attention,
)
from mmext.ops.position_grid import resize_position_grid, sincos_position_grid
from mmext.ops.token_merging import (
    bipartite_soft_matching,
    merge_schedule,
    merge_tokens,
    scaled_r,
    track_tokens,
    unmerge_tokens,
)

__all__ = [
    'bipartite_soft_matching',
    'channel_bias_attention',
    'columns_to_mask',
    'gather_kv',
    'keep_ratio_schedule',
    'key_bias_attention',
    'merge_schedule',
    'merge_tokens',
    'num_kept',
    'project_kept_kv',
    'query_key_free_attention',
    'reference_key_bias_attention',
    'resize_position_grid',
    'scaled_r',
    'sincos_position_grid',
    'threshold_columns',
    'top_k_columns',
    'track_tokens',
    'unmerge_tokens',
]
