"""A checkpoint that a run will start from is opened before anything is built."""

import glob
import os.path as osp
import pickle
import zipfile

import torch
from mmengine.config import Config
from torch import nn

from mmext.compat.checkpoints import allow_own_checkpoints, code_is_allowed

from .config_check import ConfigError


def check_checkpoint_file(cfg: Config) -> None:
    """Raise :class:`ConfigError` where the file to load or to resume from cannot be read.

    Tensors of files of today's format are not read, only mapped. With ``resume`` and a work dir
    that was moved or is reached from another folder, ``load_from`` is set to the last checkpoint.
    """
    path = cfg.get('load_from')
    if cfg.get('resume') and not path:
        path = _last_checkpoint(cfg)
    if path and '://' not in path and osp.isfile(path):
        check_readable(path)


def _last_checkpoint(cfg: Config) -> str | None:
    note = osp.join(cfg.work_dir, 'last_checkpoint')
    if not osp.exists(note):
        return None
    with open(note) as file:
        path = file.read().strip()
    if path and osp.exists(path):
        return path
    beside = osp.join(cfg.work_dir, osp.basename(path))
    if not path or not osp.exists(beside):
        raise ConfigError(f'{note} names {path!r}, which does not exist. Give the checkpoint to '
                          f'resume from: --resume FILE.{_others(note)}')
    cfg.load_from = beside
    return beside


def check_readable(path: str) -> None:
    """Raise :class:`ConfigError` for a damaged file and for one that would execute code."""
    allow_own_checkpoints()
    try:
        torch.load(path, map_location='cpu', weights_only=not code_is_allowed(),
                   mmap=zipfile.is_zipfile(path))
    except (pickle.UnpicklingError, EOFError, RuntimeError, OSError, ValueError, KeyError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        if 'GLOBAL' in str(error):
            reason = next(line for line in lines if 'GLOBAL' in line)
            raise ConfigError(
                f'{path} is not loaded, because it holds more than data and could execute code '
                f'({reason.split("whose")[0].strip()}). If it is your own and you trust it, set '
                'TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1.') from error
        reason = lines[0].split('. ')[0] if lines else 'it ends too early'
        if isinstance(error, pickle.UnpicklingError):  # the first lines are general advice
            reason = next((line for line in lines if line.startswith('Unsupported')), reason)
        raise ConfigError(f'{path} is damaged or no checkpoint that can be read without executing '
                          f'code in it: {reason}.{_others(path)}') from error


def check_fits(path: str, model: nn.Module) -> None:
    """Raise :class:`ConfigError` where a checkpoint under test lacks parameters of the model.

    mmengine loads what matches and only logs the rest, so a file of another model would be tested
    with random weights.
    """
    if '://' in path or not osp.isfile(path):
        return
    content = torch.load(path, map_location='cpu', weights_only=not code_is_allowed(),
                         mmap=zipfile.is_zipfile(path))
    state = content.get('state_dict', content.get('model', content))
    state = {key.removeprefix('module.'): value for key, value in state.items()}
    own = dict(model.named_parameters())
    missing = [name for name in own if name not in state]
    if missing:
        raise ConfigError(
            f'{path} lacks {len(missing)} of the {len(own)} parameters of this model '
            f'({", ".join(missing[:3])}, ...): it is of another model or in another layout. '
            'tools/model_converters/convert_vit.py turns timm, official and mmpretrain ViT files '
            "into mmext's.")


def _others(path: str) -> str:
    found = {osp.basename(other) for other in glob.glob(osp.join(osp.dirname(path), '*.pth'))}
    found = sorted(found - {osp.basename(path)})
    return f' Beside it: {", ".join(found)}.' if found else ''
