from mmext.engine.artifacts_hook import RunArtifactsHook
from mmext.engine.compile_hook import CompileBackboneHook
from mmext.engine.fsdp_strategy import FSDPStrategy
from mmext.engine.hooks import SafeCheckpointHook
from mmext.engine.layer_decay_constructor import LayerDecayOptimWrapperConstructor
from mmext.engine.pretrained_head_hook import PretrainedHeadHook
from mmext.engine.train_only_constructor import TrainOnlyOptimWrapperConstructor
from mmext.registry import METRICS

__all__ = [
    'CompileBackboneHook',
    'FSDPStrategy',
    'LayerDecayOptimWrapperConstructor',
    'PretrainedHeadHook',
    'RunArtifactsHook',
    'SafeCheckpointHook',
    'TrainOnlyOptimWrapperConstructor',
]


@METRICS.register_module(name='CocoMetric')
def build_coco_metric(*args, **kwargs):
    """``mmext.engine.coco_metric.CocoMetric``; mmdet, its base, is imported when it is built."""
    from mmext.engine.coco_metric import CocoMetric
    return CocoMetric(*args, **kwargs)
