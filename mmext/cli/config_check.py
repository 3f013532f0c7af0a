"""Finds typing errors in a config before anything is built.

mmengine reports an unknown type or argument from deep inside its registry, after data sets were
loaded. Here the config is walked once: every ``type`` must be registered, every key beside it must
be an argument of that class.
"""

import difflib
import importlib
import inspect
import os.path as osp

from mmengine import registry as mmengine_registry
from mmengine.config import Config
from mmengine.registry import Registry

from mmext.cli.config_walk import initial_weights, walk

# Sections whose dicts are built by the registries, hence checkable.
SECTIONS = ('model', 'train_dataloader', 'val_dataloader', 'test_dataloader', 'val_evaluator',
            'test_evaluator', 'optim_wrapper', 'param_scheduler', 'default_hooks', 'custom_hooks',
            'visualizer', 'data_preprocessor', 'strategy')
# Keys that builders take out before the class is called, by the registry of the class.
TAKEN_BY_BUILDERS = {'_scope_', '_delete_', 'init_cfg', 'default_args', 'priority',
                     'convert_to_iter_based', 'data_preprocessor', 'constructor',
                     'paramwise_cfg'}


class ConfigError(ValueError):
    """The config asks for something that does not exist; the message names it and the cure."""


def _registries(scope: str) -> list[Registry]:
    """mmengine's roots and those that only the scope has, such as mmpretrain's batch augments."""
    own = importlib.import_module(f'{scope}.registry')
    return [v for module in (mmengine_registry, own) for v in vars(module).values()
            if isinstance(v, Registry)]


def _find(name: str, scope: str):
    for root in _registries(scope):
        child = root._search_child(scope)
        try:
            found = (root if child is None else child).get(name)
        except (KeyError, RuntimeError):
            found = None
        if found is not None:
            return found
    return None


def _known_names(scope: str) -> list[str]:
    """Names of all registries and their children, with the scope of the children."""
    names = []

    def collect(registry):
        core = registry.scope in ('mmengine', 'mmdet', 'mmpretrain')
        prefix = '' if core else registry.scope + '.'
        names.extend(prefix + n for n in registry.module_dict)
        for child in registry.children.values():
            collect(child)

    for root in _registries(scope):
        collect(root)
    return names


def _arguments(cls) -> set[str] | None:
    """Names that ``cls(...)`` accepts, following ``**kwargs`` to the base classes; None = any."""
    if not inspect.isclass(cls):
        parameters = inspect.signature(cls).parameters.values()
        if any(p.kind is p.VAR_KEYWORD for p in parameters):
            return None
        return {p.name for p in parameters}
    names = set()
    for base in cls.__mro__:
        if '__init__' not in vars(base):
            continue
        if base is object:
            return names
        try:
            parameters = list(inspect.signature(base.__init__).parameters.values())[1:]
        except (TypeError, ValueError):
            return None
        names |= {p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return names
        if base.__module__.startswith(('torch.', 'timm.')):
            return None
    return None


def _closest(name: str, names, cutoff: float) -> str | None:
    close = difflib.get_close_matches(name, sorted(set(names)), n=1, cutoff=cutoff)
    return close[0] if close else None


def check_config(cfg: Config) -> None:
    """Raise :class:`ConfigError` for a type or an argument that is misspelt.

    A name that nothing resembles is left to the builders: some heads take keys out of a loss's
    config, some layers are looked up in torch or mmcv, not in a registry.

    Args:
        cfg: A config with its ``default_scope``.
    """
    scope = cfg.get('default_scope', 'mmengine')
    for section in SECTIONS:
        for path, node in walk(cfg.get(section), section):
            name = node.get('type')
            if not isinstance(name, str):
                continue
            cls = _find(name, node.get('_scope_', scope))
            ours = name.startswith('mmext.')
            if cls is None:
                close = _closest(name, _known_names(scope), .6 if ours else .8)
                if ours or close:
                    raise ConfigError(f'{path}.type = {name!r} is not registered.' +
                                      (f' Did you mean {close!r}?' if close else ''))
                continue
            known = _arguments(cls)
            for key in node if known else ():
                if key == 'type' or key in known or key in TAKEN_BY_BUILDERS:
                    continue
                close = _closest(key, known, .6 if ours else .88)
                if ours or close:
                    raise ConfigError(f'{path} ({name}) has no argument {key!r}.' +
                                      (f' Did you mean {close!r}?' if close else ''))


def check_checkpoints(cfg: Config) -> None:
    """Raise :class:`ConfigError` where a local checkpoint named in the config does not exist."""
    value = cfg.get('load_from')
    if value and '://' not in value and not osp.exists(value):
        raise ConfigError(f'load_from = {value!r} does not exist.')
    for path, _, init in initial_weights(cfg.get('model')):
        name = init.get('checkpoint')
        if not name:
            raise ConfigError(f'{path}.init_cfg.checkpoint is empty. Give the file with '
                              f'--cfg-options {path}.init_cfg.checkpoint=FILE.')
        if '://' not in name and not osp.exists(name):
            raise ConfigError(
                f'{path}.init_cfg.checkpoint = {name!r} does not exist. Give another with '
                f'--cfg-options {path}.init_cfg.checkpoint=FILE, or train from scratch with '
                f'{path}.init_cfg=None.')


def check_data_paths(cfg: Config, splits=('train', 'val', 'test')) -> None:
    """Raise :class:`ConfigError` where an annotation file or image folder does not exist."""
    for section in (f'{split}_{part}' for split in splits for part in ('dataloader', 'evaluator')):
        for path, node in walk(cfg.get(section), section):
            if '.pipeline[' not in path:
                _require_data(path, node)


def _require_data(path: str, node: dict) -> None:
    """That the files and folders named by one dict of a data set or evaluator are there."""
    root = node.get('data_root') or ''
    ann = node.get('ann_file')
    if isinstance(ann, str) and ann and '://' not in ann:
        _require(osp.join(root, ann), f'{path}.ann_file', path)
    if root and '://' not in root and not node.get('download'):
        _require(root, f'{path}.data_root', path)
    prefix = node.get('data_prefix') or {}
    if isinstance(prefix, str):  # mmpretrain; mmdet has {'img': folder}
        prefix = {None: prefix}
    for key, value in prefix.items():
        if isinstance(value, str) and value and '://' not in value:
            name = f'{path}.data_prefix' + (f'.{key}' if key else '')
            _require(osp.join(root, value), name, path)


def _require(file: str, name: str, path: str) -> None:
    if osp.exists(file):
        return
    kind = 'annotation file' if name.endswith('ann_file') else 'image folder'
    cure = f'data_root=DIR (moves every path below it), {path}.data_root=DIR'
    if not name.endswith('data_root'):
        cure += f' or {name}=PATH'
    raise ConfigError(f'{name}: the {kind} {file!r} does not exist. Set it with '
                      f'--cfg-options {cure}. Nothing is downloaded.')
