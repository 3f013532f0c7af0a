"""mmengine's ways to read files, replaced by the safe ones; done by ``import mmext.registry``.

mmengine reads a checkpoint again with code allowed when the safe way refuses it, finds downloads
by file name alone, and unpickles results without care. Everything of mmengine, mmdet and
mmpretrain that reads such files goes through the few functions that are replaced here.
"""

import torch
from mmengine.fileio.handlers import file_handlers
from mmengine.fileio.handlers.pickle_handler import PickleHandler
from mmengine.logging import print_log
from mmengine.model.weight_init import PretrainedInit, update_init_info
from mmengine.registry import WEIGHT_INITIALIZERS
from mmengine.runner import checkpoint as mmengine_checkpoint
from mmengine.runner.checkpoint import CheckpointLoader

from mmext.checkpoints.files import fetch, local_file, state_of
from mmext.checkpoints.fit import DoesNotFit, load_into
from mmext.checkpoints.safe_reader import code_is_allowed, read_checkpoint, read_pickle
from mmext.compat.torch_load import allow_own_checkpoints


def install() -> None:
    """Replace them; a second call changes nothing."""
    CheckpointLoader.register_scheme('', load_from_local, force=True)
    CheckpointLoader.register_scheme(('http://', 'https://'), load_from_http, force=True)
    mmengine_checkpoint.load_from_local = load_from_local
    mmengine_checkpoint.load_from_http = load_from_http  # what openmmlab:// and others call
    mmengine_checkpoint._safe_torch_load = _torch_load
    for suffix in ('pkl', 'pickle'):
        file_handlers[suffix] = DataOnlyPickleHandler()
    for name in ('Pretrained', 'PretrainedInit'):
        if name in WEIGHT_INITIALIZERS:
            WEIGHT_INITIALIZERS.register_module(name, force=True, module=CountedPretrainedInit)


def load_from_local(filename, map_location=None):
    return read_checkpoint(local_file(filename), map_location=map_location)


def load_from_http(filename, map_location=None, model_dir=None, progress=None):
    return read_checkpoint(fetch(filename), map_location=map_location)


def _torch_load(file, map_location=None, weights_only=None):
    """For what is no file on a local disk: buffers, of which no checksum is known."""
    if isinstance(file, str):
        return read_checkpoint(file, map_location=map_location)
    allow_own_checkpoints()
    return torch.load(file, map_location=map_location, weights_only=not code_is_allowed())


class DataOnlyPickleHandler(PickleHandler):
    """Results, proposals and the like: data, no code; see ``read_pickle``."""

    def load_from_fileobj(self, file, **kwargs):
        return read_pickle(file, getattr(file, 'name', 'the pickle'), **kwargs)

    def load_from_path(self, filepath, **kwargs):
        with open(filepath, 'rb') as file:
            return read_pickle(file, str(filepath), **kwargs)


class CountedPretrainedInit(PretrainedInit):
    """``init_cfg=dict(type='Pretrained', ...)``: one line that counts, and an error at zero.

    Of modules without a way of their own, such as heads and the backbones of other packages; a
    file may lack parts (heads of other classes), which then start from their random values.
    """

    def __call__(self, module) -> None:
        content = CheckpointLoader.load_checkpoint(self.checkpoint, self.map_location)
        state = state_of(content, self.checkpoint, self.prefix or '')
        fit = load_into(module, state)
        if not fit.loaded:
            raise DoesNotFit(f'{self.checkpoint}: {fit.sentence(type(module).__name__)} Give '
                             'prefix=... where its names lie under one, or leave init_cfg out.')
        print_log(f'{self.checkpoint}: {fit.sentence(type(module).__name__)}', logger='current')
        if hasattr(module, '_params_init_info'):
            update_init_info(module, init_info=self._get_init_info())
