"""Heads; what needs mmpretrain is imported when it is built, not before."""

from mmext.registry import MODELS


@MODELS.register_module(name='FrozenLinearClsHead')
def build_frozen_linear_cls_head(**kwargs):
    """Builds :class:`mmext.models.heads.frozen_linear.FrozenLinearClsHead`."""
    from mmext.models.heads.frozen_linear import FrozenLinearClsHead

    return FrozenLinearClsHead(**kwargs)


__all__ = ['build_frozen_linear_cls_head']
