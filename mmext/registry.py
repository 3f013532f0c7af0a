"""Registries of mmext: children of mmengine's, so ``type='mmext.X'`` resolves from any scope.

mmengine imports ``<scope>.registry`` by itself when it meets ``mmext.X`` in a config; the
``locations`` are imported at the first look-up. No ``custom_imports`` is needed. From here on
mmengine reads files as ``mmext.checkpoints.safe_reader`` does: verified, without executing code.
"""

import importlib

from mmengine.registry import DATASETS as MMENGINE_DATASETS
from mmengine.registry import HOOKS as MMENGINE_HOOKS
from mmengine.registry import METRICS as MMENGINE_METRICS
from mmengine.registry import MODELS as MMENGINE_MODELS
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS as MMENGINE_OPTIM_WRAPPER_CONSTRUCTORS
from mmengine.registry import OPTIM_WRAPPERS as MMENGINE_OPTIM_WRAPPERS
from mmengine.registry import STRATEGIES as MMENGINE_STRATEGIES
from mmengine.registry import TRANSFORMS as MMENGINE_TRANSFORMS
from mmengine.registry import Registry

import mmext.compat

mmext.compat.setup()

# Classes that import mmdet or mmpretrain: name -> module, imported when a config asks for one
ON_DEMAND = {
    'FrozenLinearClsHead': 'mmext.models.frozen_linear_head',
    'CocoMetric': 'mmext.engine.coco_metric',
    'SVHN': 'mmext.datasets.svhn',
    'MaskedDetDataPreprocessor': 'mmext.models.detection.data_preprocessor',
    'SemanticSegmentor': 'mmext.models.detection.semantic_segmentor',
    'MaskedRPNHead': 'mmext.models.detection.padding',
    'MaskedRoIExtractor': 'mmext.models.detection.padding',
}


class OnDemandRegistry(Registry):
    """mmengine's, with classes whose modules are imported at their first look-up."""

    def get(self, key: str):
        module = ON_DEMAND.get(key.removeprefix('mmext.'))
        if module is not None:
            importlib.import_module(module)
        return super().get(key)


MODELS = OnDemandRegistry(
    'model', scope='mmext', parent=MMENGINE_MODELS, locations=['mmext.models'])
DATASETS = OnDemandRegistry(
    'dataset', scope='mmext', parent=MMENGINE_DATASETS, locations=['mmext.datasets'])
TRANSFORMS = Registry(
    'transform', scope='mmext', parent=MMENGINE_TRANSFORMS, locations=['mmext.datasets'])
HOOKS = Registry('hook', scope='mmext', parent=MMENGINE_HOOKS, locations=['mmext.engine'])
METRICS = OnDemandRegistry(
    'metric', scope='mmext', parent=MMENGINE_METRICS, locations=['mmext.engine'])
OPTIM_WRAPPERS = Registry(
    'optim_wrapper', scope='mmext', parent=MMENGINE_OPTIM_WRAPPERS, locations=['mmext.engine'])
OPTIM_WRAPPER_CONSTRUCTORS = Registry(
    'optimizer wrapper constructor',
    scope='mmext',
    parent=MMENGINE_OPTIM_WRAPPER_CONSTRUCTORS,
    locations=['mmext.engine'])
STRATEGIES = Registry(
    'strategy', scope='mmext', parent=MMENGINE_STRATEGIES, locations=['mmext.engine'])

from mmext.checkpoints import mmengine_loading  # noqa: E402

mmengine_loading.install()
