"""What the tools share: from command line to config, model or Runner."""

import copy
import difflib
import glob
import os.path as osp

from mmengine.config import Config
from mmengine.hub import get_config
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner
from torch import nn

import mmext.registry
from mmext.checkpoints.safe_reader import forbid_code_in_checkpoints
from mmext.cli.clear_errors import one_clear_error  # noqa: F401  (for the tools)
from mmext.compat import cpu

from . import run_log
from . import work_dir as work_dirs
from .checkpoint_check import (
    check_checkpoint_file,
    check_fits,
    check_resumes,
    check_start,
    is_published,
)
from .config_check import (
    ConfigError,
    check_checkpoints,
    check_config,
    check_data_paths,
    check_options,
    mend_workers,
    splits_of,
)
from .config_walk import walk

SCOPES = ('mmdet', 'mmpretrain')


def load_config(path: str, options: dict | None, work_dir: str | None, launcher: str) -> Config:
    """Read a config, merge the command line into it and make its scope the default.

    Raises:
        ConfigError: No such file, no valid Python, or no ``default_scope`` known to mmext.
    """
    if '::' not in path and not osp.exists(path):
        near = {osp.basename(f): f for f in glob.glob(osp.join(osp.dirname(path), '*.py'))}
        close = difflib.get_close_matches(osp.basename(path), near, n=1)
        hint = f' Did you mean {near[close[0]]!r}?' if close else ''
        raise ConfigError(f'config {path!r} does not exist.{hint}')
    try:
        cfg = get_config(path) if '::' in path else Config.fromfile(path)
    except Exception as error:  # a config is a program: whatever it raises is about it
        hint = '' if '.mim' not in str(error) else (
            '. Configs are found by name (mmext::...) once mmext is installed: run '
            '`pip install -e .` in its checkout')
        raise ConfigError(f'config {path!r} cannot be read: {error}{hint}') from error
    drop_own_scope(cfg._cfg_dict)
    if options:
        try:
            check_options(cfg, options)
            if 'data_root' in options:
                set_data_root(cfg, options['data_root'], options)
            cfg.merge_from_dict(options)
        except (KeyError, IndexError, TypeError) as error:
            raise ConfigError(f'--cfg-options does not fit the config: {error}') from error
    if cfg.get('default_scope') not in SCOPES:
        raise ConfigError(f"default_scope = {cfg.get('default_scope')!r}; mmext trains configs of "
                          f'scope {" or ".join(map(repr, SCOPES))}.')
    init_default_scope(cfg.default_scope)
    cfg.launcher = launcher
    if work_dir is not None:
        cfg.work_dir = work_dir
    elif cfg.get('work_dir') is None:
        cfg.work_dir = osp.join('work_dirs', osp.splitext(osp.basename(path))[0])
    return cfg


def drop_own_scope(node) -> None:
    """Undo the scope that mmengine gives to a base config found by name (``mmext::...``).

    mmext's configs are of scope mmdet or mmpretrain and write ``mmext.`` where they mean it.
    """
    for _, part in walk(node):
        if part.get('_scope_') == 'mmext':
            part.pop('_scope_')


def set_data_root(cfg: Config, new: str, options: dict) -> None:
    """Replace the config's data folder by ``new`` in every path, in place.

    In a config file ``data_root`` is a variable: its value was copied into data sets and
    evaluators before the command line could change it. A config that writes its paths out may
    have a folder of its own, beside the variable that it inherited.

    Raises:
        ConfigError: the data sets lie in several folders, so that it is not clear what moves.
    """
    old = cfg.get('data_root')
    if isinstance(old, str):
        move_paths(cfg._cfg_dict, old, new)
    left = {}  # folder -> where it is named
    for split in ('train', 'val', 'test'):
        name = f'{split}_dataloader'
        if not any(key.startswith(name) and key.endswith('data_root') for key in options):
            for where, root in data_roots(cfg.get(name), name):
                if root.rstrip('/') != new.rstrip('/') and not root.startswith(
                        new.rstrip('/') + '/'):
                    left.setdefault(root.rstrip('/'), f'{where}.data_root')
    if len(left) > 1:
        raise ConfigError(
            f'data_root={new} does not fit: the data sets lie in several folders ('
            + ', '.join(f'{where}={root!r}' for root, where in left.items())
            + '). Set each of them.')
    if '' in left:
        raise ConfigError(f'data_root={new} does nothing: {left[""]} is not set and the paths are '
                          f'written out. Set {left[""]} and paths relative to it in the config.')
    for root in left:
        move_paths(cfg._cfg_dict, root, new)


def data_roots(node, where: str):
    """Where a data set below a dataloader says its folder, and the folder; '' for none."""
    if isinstance(node, dict):
        if any(key in node for key in ('ann_file', 'data_root', 'data_prefix')):
            yield where, node.get('data_root') or ''
        for key in ('dataset', 'datasets'):
            yield from data_roots(node.get(key), f'{where}.{key}')
    elif isinstance(node, (list, tuple)):
        for index, value in enumerate(node):
            yield from data_roots(value, f'{where}[{index}]')


def move_paths(node, old: str, new: str) -> None:
    """Replace the folder ``old`` by ``new`` in every path of a part of a config, in place."""
    old, new = old.rstrip('/'), new.rstrip('/')

    def moved(value):
        if isinstance(value, str) and (value == old or value.startswith(old + '/')):
            return new + value[len(old):]
        return type(value)(map(moved, value)) if isinstance(value, (list, tuple)) else value

    for _, part in walk(node):
        for key, value in list(part.items()):
            part[key] = moved(value)


def build_model(cfg: Config) -> nn.Module:
    """The model of a config by itself: in eval mode, no data set, no pre-trained weights."""
    init_default_scope(cfg.get('default_scope', 'mmengine'))
    model = cfg.model.copy()
    if cfg.get('data_preprocessor') is not None:
        model.setdefault('data_preprocessor', cfg.data_preprocessor)
    return MODELS.build(model).eval()


def default_shape(model, cfg: Config) -> tuple[int, int]:
    """The size the backbone was built for; 224 (classifier) or 1024 (detector) without one."""
    backbone = model.backbone
    if hasattr(backbone, 'grid'):
        return tuple(side * backbone.patch_size for side in backbone.grid)
    size = getattr(backbone, 'img_size', 1024 if cfg.get('default_scope') == 'mmdet' else 224)
    return (size, size) if isinstance(size, int) else tuple(size)


def set_keep_ratio(backbone: nn.Module, value) -> None:
    """``backbone.set_keep_ratio(value)``.

    Raises:
        ConfigError: the backbone does not prune.
    """
    if not hasattr(backbone, 'set_keep_ratio'):
        raise ConfigError(f'--keep-ratio: backbone {type(backbone).__name__} does not prune; leave '
                          'the option out')
    backbone.set_keep_ratio(value)


def build_runner(cfg: Config, splits: tuple[str, ...]) -> Runner:
    """Check a config against the registries and the disk, then build its Runner.

    Args:
        splits: The data that will be used, out of 'train', 'val', 'test'; what comes after the
            first one, if the config has it.

    Raises:
        ConfigError: what the config asks for does not exist, or its work dir is in use.
        DoesNotFit: the checkpoint to start from, to resume or to test is of another model.
    """
    first, splits = splits[0], splits_of(cfg, *splits)
    if first not in splits:
        raise ConfigError(f'the config has no {first}_dataloader, there is nothing to {first} on.')
    mend_workers(cfg)
    forbid_code_in_checkpoints()
    cpu.adapt_config(cfg)
    check_config(cfg)
    check_checkpoints(cfg)
    check_checkpoint_file(cfg)
    check_data_paths(cfg, splits)
    if cfg.default_scope == 'mmdet':
        from mmext.cli.annotation_check import check_dataset_cfg
        from mmext.cli.panoptic_check import check_segmentation_cfg
        check_dataset_cfg(cfg, splits)
        check_segmentation_cfg(cfg, splits)
    else:
        from mmext.cli.class_check import check_class_data
        check_class_data(cfg, splits)
    if 'train' in splits:
        save_safely(cfg)
        work_dirs.claim(cfg)
    cpu.init_process_group(cfg.launcher)
    runner = run_log.build(cfg)
    runner.logger.info(mmext.compat.patched())
    refuse_damaged_images(runner)
    if cfg.get('load_from') and not osp.isdir(cfg.load_from):  # sharded states are folders
        hold_against_checkpoint(runner, cfg, 'train' in splits)
    return runner


def save_safely(cfg: Config) -> None:
    """Give a config of another package our checkpoint hook, which takes the same arguments."""
    hook = cfg.setdefault('default_hooks', {}).setdefault(
        'checkpoint', dict(type='CheckpointHook', interval=1))
    if hook and hook.get('type') == 'CheckpointHook':
        hook['type'] = 'mmext.SafeCheckpointHook'


def hold_against_checkpoint(runner: Runner, cfg: Config, training: bool) -> None:
    """Refuse a checkpoint that is of another model before anything runs."""
    model = runner.model
    if not isinstance(model, nn.Module):  # a runner with a strategy builds it later
        model = build_model(cfg)
    while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
        model = model.module
    if not training:
        check_fits(cfg.load_from, model)
        if is_published(cfg.load_from, model):
            runner._has_loaded = True  # mmengine knows names as they are only
    elif cfg.get('resume'):
        check_resumes(cfg.load_from, model, cfg)
    else:
        check_start(cfg.load_from, model)


def set_visualizer(cfg: Config) -> None:
    """Give a config that names no visualizer the one that its scope draws with."""
    if cfg.get('visualizer') is None:
        name = 'DetLocalVisualizer' if cfg.default_scope == 'mmdet' else 'UniversalVisualizer'
        cfg.visualizer = dict(type=name, vis_backends=[dict(type='LocalVisBackend')])


def refuse_damaged_images(runner: Runner) -> None:
    """Let the Runner's data sets load images by ``mmext.LoadImageFromFile``, errors name them.

    Done here and not in the config files, because the inferencers of mmdet and mmpretrain look
    for mmcv's loader by its name.
    """
    for name in ('_train_dataloader', '_val_dataloader', '_test_dataloader'):
        dataloader = copy.deepcopy(getattr(runner, name, None))  # the config stays as it is
        if isinstance(dataloader, dict):
            for _, node in walk(dataloader):
                if node.get('type') == 'LoadImageFromFile':
                    node['type'] = 'mmext.LoadImageFromFile'
                steps = node.get('pipeline')
                if isinstance(steps, (list, tuple)) and steps and isinstance(steps[0], dict):
                    node['pipeline'] = [dict(type='mmext.NameImage', transforms=list(steps))]
            setattr(runner, name, dataloader)
