from mmext.models.necks import SimpleFeaturePyramid

__all__ = ['SimpleFeaturePyramid']
