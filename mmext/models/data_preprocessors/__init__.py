"""Data preprocessors; what needs mmdet is imported when it is built, not before."""

from mmext.registry import MODELS


@MODELS.register_module(name='MaskedDetDataPreprocessor')
def build_masked_det_data_preprocessor(**kwargs):
    """Builds :class:`mmext.models.data_preprocessors.masked_det.MaskedDetDataPreprocessor`."""
    from mmext.models.data_preprocessors.masked_det import MaskedDetDataPreprocessor

    return MaskedDetDataPreprocessor(**kwargs)


__all__ = ['build_masked_det_data_preprocessor']
