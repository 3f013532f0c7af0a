"""A checkpoint that a run will start from is opened and held against the model before it runs."""

import glob
import os.path as osp
import re
import sys

from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.runner.checkpoint import CheckpointLoader
from torch import nn

from mmext.checkpoints import tost, vit
from mmext.checkpoints.files import local_file, state_of
from mmext.checkpoints.fit import DoesNotFit, Fit, require, some
from mmext.checkpoints.official import own_names
from mmext.checkpoints.safe_reader import UnreadableCheckpoint, read_checkpoint

from .config_check import ConfigError
from .config_walk import initial_weights


def check_checkpoint_file(cfg: Config) -> None:
    """Raise :class:`ConfigError` where a file to start or to resume from cannot be read.

    Tensors of files of today's format are verified and mapped, not copied. With ``resume`` and no
    file to resume from, the last checkpoint of the work dir is looked up first.
    """
    if cfg.get('resume') and not cfg.get('load_from'):
        resume_from_last(cfg)
    given = [init.get('checkpoint') for _, _, init in initial_weights(cfg.get('model'))]
    for one in (cfg.get('load_from'), *given):
        if one and '://' not in one and osp.isfile(one):
            check_readable(one)


def resume_from_last(cfg: Config) -> None:
    """Set ``load_from`` to the last checkpoint of the work dir.

    Where there is none the run starts as without ``--resume``, from ``load_from`` if there is one.
    """
    last = last_checkpoint(cfg.work_dir)
    cfg.resume = last is not None
    if last is not None:
        cfg.load_from = last
        return
    start = f' from {cfg.load_from}' if cfg.get('load_from') else ''
    print(f'nothing to resume in {cfg.work_dir}: starting anew{start}', file=sys.stderr)


def last_checkpoint(work_dir: str) -> str | None:
    """What a run in this folder saved last and completely; None where it saved nothing.

    ``last_checkpoint`` names it, by its place at that time or beside it; where that file is lost,
    the newest complete checkpoint is taken.

    Raises:
        ConfigError: there are checkpoints, but none that can be resumed.
    """
    note = osp.join(work_dir, 'last_checkpoint')
    if osp.exists(note):
        with open(note) as file:
            path = file.read().strip()
        beside = osp.join(work_dir, osp.basename(path))
        for one in (path, beside):
            if path and osp.exists(one):
                return one
        raise ConfigError(f'{note} names {path!r}, which does not exist. Give the checkpoint to '
                          f'resume from: --resume FILE.{_others(note)}')
    found = glob.glob(osp.join(glob.escape(work_dir), '*.pth'))
    numbered = [(int(number[2]), number[1], path) for path in found
                if (number := re.fullmatch(r'(epoch|iter)_(\d+)\.pth', osp.basename(path)))]
    newest, damaged = [], []
    for kind in ('epoch', 'iter'):
        for _, _, path in sorted((one for one in numbered if one[1] == kind), reverse=True):
            try:
                newest.append((read_checkpoint(path, mmap=True)['meta']['iter'], path))
                break
            except (UnreadableCheckpoint, KeyError, TypeError):
                damaged.append(osp.basename(path))
    if newest:
        path = max(newest)[1]
        passed = f'; damaged and passed over: {", ".join(damaged)}' if damaged else ''
        print(f'{note} is lost: resuming from the newest complete checkpoint, {path}{passed}',
              file=sys.stderr)
        return path
    if found:
        raise ConfigError(
            f'{work_dir} has checkpoints but none to resume from. Give one with --resume FILE, or '
            f'another --work-dir to start anew.{_others(note)}')
    return None


def check_readable(path: str) -> None:
    """Raise :class:`ConfigError` for a damaged file and for one that would execute code."""
    try:
        read_checkpoint(path, mmap=True)
    except UnreadableCheckpoint as error:
        damaged = 'is damaged' in str(error)
        raise ConfigError(f'{error}{_others(path) if damaged else ""}') from error


# ------------------------------------------------------------------------- against the model
def check_fits(path: str, model: nn.Module) -> Fit:
    """Load a whole checkpoint into a model to be evaluated, drawn or exported.

    A classifier takes the published file of its network too (DeiT, MAE, ToST, timm), head included.

    mmengine loads what matches and only logs the rest, so a file of another model, or of other
    classes, would be tested with random weights.

    Raises:
        DoesNotFit: a name is missing or left over, or a shape or buffer differs.
    """
    state = state_of(_content(path), path)
    return require(model, own_names(state, model) or state, path)


def is_published(path: str, model: nn.Module) -> bool:
    """Whether :func:`check_fits` has to rename what is in the file."""
    return own_names(state_of(_content(path), path), model) is not None


def check_start(path: str, model: nn.Module) -> Fit:
    """As :func:`check_fits`, for a training that starts from the file (``load_from``).

    The backbone must fit, but for what published files do not have (key bias) or a backbone leaves
    out. Heads and necks may differ: they start from their initial values, and one line counts
    them.
    """

    def may_differ(name: str) -> object:
        part, _, rest = name.partition('.')
        return part != 'backbone' or any(pattern.fullmatch(rest) for pattern in (
            vit.MAY_BE_NEW, vit.MAY_BE_DROPPED, tost.MAY_BE_NEW))

    fit = require(model, state_of(_content(path), path), path, may_differ)
    if not fit.complete:
        print_log(f'load_from: {fit.sentence(type(model).__name__)} What is missing or of another '
                  'shape starts from its initial values.', logger='current')
    return fit


def check_resumes(path: str, model: nn.Module, cfg: Config) -> None:
    """As :func:`check_fits`, for a run that goes on: with the same shapes and the optimizer."""
    content = _content(path)
    state = state_of(content, path)
    require(model, state, path)
    own = model.state_dict()
    resized = [name for name in own if name in state and state[name].shape != own[name].shape]
    if resized:
        raise DoesNotFit(f'{path} cannot be resumed: its {some(resized)} have another size in '
                         'this model. Start from its weights instead: load_from=FILE.')
    if 'optimizer' not in content or 'iter' not in content.get('meta', {}):
        raise DoesNotFit(f'{path} cannot be resumed: it holds weights without the state of a '
                         'training. Start from its weights instead: load_from=FILE.')
    averages = any('EMAHook' in str(hook.get('type')) for hook in (
        *(cfg.get('custom_hooks') or ()), *(cfg.get('default_hooks') or {}).values()) if hook)
    if 'ema_state_dict' in content and not averages:
        raise DoesNotFit(
            f'{path} cannot be resumed: it is of a run with a moving average, whose weights it '
            'holds in place of the trained ones, and this config has no EMAHook.')
    if 'ema_state_dict' in content:
        average = {key.removeprefix('module.'): value
                   for key, value in content['ema_state_dict'].items() if key != 'steps'}
        require(model, average, f'the moving average in {path}')


def _content(path: str):
    """What is in a file or URL, tensors mapped where they can be."""
    if '://' in path and not path.startswith(('http://', 'https://')):
        return CheckpointLoader.load_checkpoint(path, 'cpu')  # openmmlab:// and the like
    return read_checkpoint(local_file(path), mmap=True)


def _others(path: str) -> str:
    found = {osp.basename(other) for other in glob.glob(osp.join(osp.dirname(path), '*.pth'))}
    found = sorted(found - {osp.basename(path)})
    return f' Beside it: {", ".join(found)}.' if found else ''
