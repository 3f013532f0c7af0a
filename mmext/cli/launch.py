"""What the tools share: from command line to config, model or Runner."""

import copy
import difflib
import glob
import os.path as osp

from mmengine.config import Config
from mmengine.hub import get_config
from mmengine.registry import MODELS, RUNNERS, init_default_scope
from mmengine.runner import Runner
from torch import nn

import mmext.registry  # noqa: F401  (first: it prepares mmcv, mmdet and mmpretrain)
from mmext.checkpoints.safe_reader import forbid_code_in_checkpoints
from mmext.cli.clear_errors import one_clear_error  # noqa: F401  (for the tools)
from mmext.compat import cpu

from .checkpoint_check import check_checkpoint_file
from .config_check import ConfigError, check_checkpoints, check_config, check_data_paths
from .config_walk import walk

SCOPES = ('mmdet', 'mmpretrain')


def load_config(path: str, options: dict | None, work_dir: str | None, launcher: str) -> Config:
    """Read a config, merge the command line into it and make its scope the default.

    Raises:
        ConfigError: No such file, no valid Python, or no ``default_scope`` known to mmext.
    """
    if '::' not in path and not osp.exists(path):
        near = {osp.basename(f): f for f in glob.glob(osp.join(osp.dirname(path) or '.', '*.py'))}
        close = difflib.get_close_matches(osp.basename(path), near, n=1)
        hint = f' Did you mean {near[close[0]]!r}?' if close else ''
        raise ConfigError(f'config {path!r} does not exist.{hint}')
    try:
        cfg = get_config(path) if '::' in path else Config.fromfile(path)
    except (SyntaxError, NameError, KeyError, FileNotFoundError, ValueError) as error:
        hint = '' if '.mim' not in str(error) else (
            '. Configs are found by name (mmext::...) once mmext is installed: run '
            '`pip install -e .` in its checkout')
        raise ConfigError(f'config {path!r} cannot be read: {error}{hint}') from error
    drop_own_scope(cfg._cfg_dict)
    if options:
        try:
            if 'data_root' in options and isinstance(cfg.get('data_root'), str):
                move_data_root(cfg._cfg_dict, cfg.data_root, options['data_root'])
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


def move_data_root(node, old: str, new: str) -> None:
    """Replace the folder ``old`` by ``new`` in every path of the config, in place.

    In a config file ``data_root`` is a variable: its value was copied into data sets and
    evaluators before the command line could change it.
    """
    old, new = old.rstrip('/'), new.rstrip('/')

    def moved(value):
        if isinstance(value, str) and (value == old or value.startswith(old + '/')):
            return new + value[len(old):]
        return [moved(one) for one in value] if isinstance(value, list) else value

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
        splits: The data that will be used, out of 'train', 'val', 'test'.
    """
    forbid_code_in_checkpoints()
    cpu.adapt_config(cfg)
    check_config(cfg)
    check_checkpoints(cfg)
    check_checkpoint_file(cfg)
    check_data_paths(cfg, splits)
    if cfg.default_scope == 'mmdet':
        from mmext.cli.annotation_check import check_dataset_cfg
        check_dataset_cfg(cfg, splits)
    cpu.init_process_group(cfg.launcher)
    runner = RUNNERS.build(cfg) if 'runner_type' in cfg else Runner.from_cfg(cfg)
    refuse_damaged_images(runner)
    return runner


def set_visualizer(cfg: Config) -> None:
    """Give a config that names no visualizer the one that its scope draws with."""
    if cfg.get('visualizer') is None:
        name = 'DetLocalVisualizer' if cfg.default_scope == 'mmdet' else 'UniversalVisualizer'
        cfg.visualizer = dict(type=name, vis_backends=[dict(type='LocalVisBackend')])


def refuse_damaged_images(runner: Runner) -> None:
    """Let the Runner's data sets load images by ``mmext.LoadImageFromFile``.

    Done here and not in the config files, because the inferencers of mmdet and mmpretrain look
    for mmcv's loader by its name.
    """
    for name in ('_train_dataloader', '_val_dataloader', '_test_dataloader'):
        dataloader = copy.deepcopy(getattr(runner, name, None))  # the config stays as it is
        if isinstance(dataloader, dict):
            for _, node in walk(dataloader):
                if node.get('type') == 'LoadImageFromFile':
                    node['type'] = 'mmext.LoadImageFromFile'
            setattr(runner, name, dataloader)
