"""Finds typing errors in a config before anything is built.

mmengine reports an unknown type or argument from deep inside its registry, after data sets were
loaded. Here the config is walked once: every ``type`` must be registered, every key beside it must
be an argument of that class.
"""

import difflib
import importlib
import inspect
import os.path as osp
import re

from mmengine import registry as mmengine_registry
from mmengine.config import Config
from mmengine.registry import Registry
from mmengine.runner import Runner

from mmext.cli.clear_errors import ConfigError
from mmext.cli.config_walk import initial_weights, walk

# Sections whose dicts are built by the registries, hence checkable.
SECTIONS = ('model', 'train_dataloader', 'val_dataloader', 'test_dataloader', 'val_evaluator',
            'test_evaluator', 'optim_wrapper', 'param_scheduler', 'default_hooks', 'custom_hooks',
            'visualizer', 'data_preprocessor', 'strategy')
# Where the builders look into registries alone: what nothing is called there is an error.
REGISTERED = re.compile(
    r'\w+_dataloader(\.dataset)+|\w+_dataloader\.(batch_)?sampler|.*\.pipeline\[\d+\]|'
    r'\w+_evaluator(\[\d+\])?|optim_wrapper(\.optimizer)?|param_scheduler(\[\d+\])?|'
    r'custom_hooks\[\d+\]|default_hooks\.\w+|model|visualizer')
# Beside the Runner's arguments, what mmengine, mmdet, mmpretrain and the tools read of a config.
SECTIONS_OF_TOOLS = {'data_root', 'strategy', 'runner_type', 'auto_scale_lr', 'tta_model',
                     'tta_pipeline', 'model_wrapper_cfg', 'optim_wrapper', 'compile', 'env_cfg',
                     'mp_start_method', 'file_client_args'}
# Keys that builders take out before the class is called, by the registry of the class.
TAKEN_BY_BUILDERS = {'_scope_', '_delete_', 'init_cfg', 'default_args', 'priority',
                     'convert_to_iter_based', 'data_preprocessor', 'constructor',
                     'paramwise_cfg'}


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
                if ours or close or REGISTERED.fullmatch(path):
                    close = close or _closest(name, _known_names(scope), .5)
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


def splits_of(cfg: Config, *wanted: str) -> tuple[str, ...]:
    """Those of 'train', 'val', 'test' that a run of ``wanted`` uses, by mmengine's own rule.

    mmengine validates where ``val_cfg`` is not None; ``val_cfg = dict()`` is false, but runs.

    Raises:
        ConfigError: a split has a data set but no evaluator or loop, or the other way round; a
            loader or loop would do nothing.
    """
    splits = []
    for split in ('train', 'val', 'test'):
        needed = (f'{split}_dataloader', f'{split}_cfg',
                  'optim_wrapper' if split == 'train' else f'{split}_evaluator')
        missing = [name for name in needed if cfg.get(name) is None]
        if 0 < len(missing) < len(needed):
            given = [name for name in needed if name not in missing]
            raise ConfigError(
                f'the config has {" and ".join(given)} but no {" and ".join(missing)}: add '
                f'{"it" if len(missing) == 1 else "them"}, or set all three to None to go without.')
        if not missing and split in wanted:
            splits.append(split)
            size = cfg[f'{split}_dataloader'].get('batch_size', 1)
            if not isinstance(size, int) or size < 1:
                raise ConfigError(f'{split}_dataloader.batch_size = {size!r} must be at least 1.')
    for key in ('max_epochs', 'max_iters') if 'train' in splits else ():
        if cfg.train_cfg.get(key, 1) < 1:
            raise ConfigError(f'train_cfg.{key} = {cfg.train_cfg[key]} trains nothing.')
    return tuple(splits)


def mend_workers(cfg: Config) -> None:
    """Take out what torch's DataLoader refuses without workers: ``num_workers=0`` means none."""
    for split in ('train', 'val', 'test'):
        loader = cfg.get(f'{split}_dataloader')
        if loader is not None and not loader.get('num_workers'):
            loader.pop('prefetch_factor', None)
            if loader.get('persistent_workers'):
                loader.persistent_workers = False


def check_options(cfg: Config, options: dict) -> None:
    """Raise :class:`ConfigError` for a ``--cfg-options`` that would do nothing, or no number.

    Called before the options are merged: what the config holds says what an option must be.
    """
    names = inspect.signature(Runner.__init__).parameters.keys() - {'self', 'cfg'}
    names |= SECTIONS_OF_TOOLS
    for key, value in options.items():
        top = key.split('.')[0]
        if top not in names:
            close = _closest(top, names, .7)
            raise ConfigError(
                f'--cfg-options {key}={value!r} has no effect: '
                + (f'{top} is a variable of the config file, whose value was copied when the '
                   'file was read. Set the places that it went to (tools print the full config), '
                   'or write a config of your own with _base_.' if top in cfg else
                   'no such section is known.')
                + (f' Did you mean {close!r}?' if close else ''))
        node = cfg
        for part in key.split('.'):
            if isinstance(node, (list, tuple)) and part.lstrip('-').isdigit():
                node = node[int(part)] if -len(node) <= int(part) < len(node) else None
            else:
                node = node.get(part) if isinstance(node, dict) or node is cfg else None
        kind = 'true or false' if isinstance(node, bool) else 'a number'
        if isinstance(node, (int, float)) and isinstance(value, str):
            raise ConfigError(f'--cfg-options {key}={value!r}: {value!r} is not {kind}; the '
                              f'config has {node!r} there.')


def check_tta(cfg: Config) -> None:
    """Raise :class:`ConfigError` where test-time augmentation can not give what is evaluated."""
    given = cfg.get('test_evaluator') or []
    for evaluator in [given] if isinstance(given, dict) else given:
        metric = evaluator.get('metric', [])
        if cfg.default_scope == 'mmdet' and 'segm' in (
                [metric] if isinstance(metric, str) else metric):
            raise ConfigError(
                "--tta merges boxes only, mmdet has no merging of masks, but test_evaluator.metric "
                f'= {metric!r} wants masks. Add --cfg-options test_evaluator.metric=bbox.')


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
