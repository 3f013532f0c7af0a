from mmext.engine.artifacts_hook import RunArtifactsHook
from mmext.engine.compile_hook import CompileBackboneHook
from mmext.engine.fsdp_strategy import FSDPStrategy
from mmext.engine.hooks import SafeCheckpointHook
from mmext.engine.layer_decay_constructor import LayerDecayOptimWrapperConstructor
from mmext.engine.pretrained_head_hook import PretrainedHeadHook
from mmext.engine.pruning_ratio_hook import PruningRatioHook

__all__ = [
    'CompileBackboneHook',
    'FSDPStrategy',
    'LayerDecayOptimWrapperConstructor',
    'PretrainedHeadHook',
    'PruningRatioHook',
    'RunArtifactsHook',
    'SafeCheckpointHook',
]
