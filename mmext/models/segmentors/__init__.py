"""Whole models of mmdet's kind; what needs mmdet is imported when it is built, not before."""

from mmext.registry import MODELS


@MODELS.register_module(name='SemanticSegmentor')
def build_semantic_segmentor(backbone, semantic_head, neck=None, train_cfg=None, test_cfg=None,
                             data_preprocessor=None, init_cfg=None):
    """Builds :class:`mmext.models.segmentors.semantic_segmentor.SemanticSegmentor`."""
    from mmext.models.segmentors.semantic_segmentor import SemanticSegmentor

    return SemanticSegmentor(
        backbone, semantic_head, neck, train_cfg, test_cfg, data_preprocessor, init_cfg)


__all__ = ['build_semantic_segmentor']
