"""A classifier that is not trained, beside a backbone of which only a part is."""

from mmpretrain.models.heads import LinearClsHead

from mmext.registry import MODELS


@MODELS.register_module()
class FrozenLinearClsHead(LinearClsHead):
    """mmpretrain's ``LinearClsHead`` whose weights stay as loaded (``mmext.PretrainedHeadHook``).

    Frozen when it is built: data-parallel wrappers, which come next, look only then at what is to
    be trained. Arguments are those of ``LinearClsHead``.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.requires_grad_(False)
