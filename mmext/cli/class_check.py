"""Checks the data of a classifier before anything is built: class folders, names, order, labels.

mmpretrain numbers labels by the sorted folders of each split apart, and takes names from the
config without looking at them: a folder that only one split has, or names in another order, give
a run that trains on one numbering and is tested on another, without a word.
"""

import os
import os.path as osp

from mmengine.logging import print_log

from .config_check import ConfigError, _find

EXTENSIONS = ('.jpg', '.jpeg', '.png', '.ppm', '.bmp', '.pgm', '.tif')  # mmpretrain's default


def check_class_data(cfg, splits) -> None:
    """Checks the data sets of a classifier's config against each other, its head and its metrics.

    Args:
        cfg: a config in mmpretrain's scope.
        splits: which of 'train', 'val' and 'test' will be used.

    Raises:
        ConfigError: the first thing that is wrong, with the cure.
    """
    found = {}  # where -> names of the labels in their order, as the data say
    classes = {}  # where -> names as the config says
    rank = int(os.environ.get('RANK', os.environ.get('SLURM_PROCID', 0)))
    for split in splits:
        for where, dataset in data_sets(cfg.get(f'{split}_dataloader'), f'{split}_dataloader'):
            names = configured_classes(dataset, cfg.default_scope, where)
            folders = None if rank else class_folders(dataset, where, split)
            if folders is not None:
                check_names(names, folders, where)
                found[where] = folders
            classes[where] = names if names is not None else folders
            if classes[where] is not None:
                check_sizes(cfg, len(classes[where]), where)
                check_topk(cfg, split, len(classes[where]))
                if not rank:
                    check_list(dataset, len(classes[where]), where)
    compare(found, 'class folders', 'every split needs the same folders (they may be empty), or an '
            'ann_file with labels')
    compare(classes, 'classes', 'labels are numbered by them: give all splits the same, in the '
            'same order')


def data_sets(node, where: str):
    """Configs of data sets below a dataloader, through any wrapper (repeat, concatenate, ...)."""
    if isinstance(node, dict):
        inner = [key for key in ('dataset', 'datasets') if key in node]
        if not inner and isinstance(node.get('type'), str):
            yield where, node
        for key in inner:
            yield from data_sets(node[key], f'{where}.{key}')
    elif isinstance(node, (list, tuple)):
        for index, value in enumerate(node):
            yield from data_sets(value, f'{where}[{index}]')


def configured_classes(dataset: dict, scope: str, where: str) -> list[str] | None:
    """The names that the config, or the class of the data set, gives to the labels."""
    classes = dataset.get('classes')
    if isinstance(classes, str):
        if not osp.isfile(osp.expanduser(classes)):
            raise ConfigError(f'{where}.classes = {classes!r} is neither a list of names nor a '
                              f'file of names; one class alone is written ({classes!r},).')
        with open(osp.expanduser(classes), encoding='utf-8') as file:
            classes = [line.rstrip('\r\n') for line in file]
    given = (dataset.get('metainfo') or {}).get('classes', classes)
    if given is None:
        cls = _find(dataset['type'], scope)
        if dataset['type'] == 'mmext.SVHN':
            return list('0123456789')
        given = getattr(cls, 'METAINFO', {}).get('classes')
    if given is None:
        return None
    names = list(given)
    twice = sorted({name for name in names if names.count(name) > 1}) if len(names) < 5000 else []
    if twice and 'classes' in dataset:
        raise ConfigError(f'{where}.classes names {twice[:3]} twice.')
    return names


def class_folders(dataset: dict, where: str, split: str) -> list[str] | None:
    """The folders that mmpretrain takes for classes, in its order; None where it takes none."""
    kind = dataset['type'].split('.')[-1]
    if kind not in ('CustomDataset', 'ImageNet', 'ImageNet21k') or dataset.get('ann_file') or (
            not dataset.get('with_label', True)):
        return None
    root, prefix = dataset.get('data_root') or '', dataset.get('data_prefix') or ''
    prefix = prefix.get('img_path', '') if isinstance(prefix, dict) else prefix
    if kind == 'ImageNet' and dataset.get('split'):
        if dataset['split'] == 'test' or osp.exists(
                osp.join(root, 'meta', f'{dataset["split"]}.txt')):
            return None
        prefix = prefix or dataset['split']
    path = osp.expanduser(osp.join(root, prefix))
    if '://' in path or not osp.isdir(path):  # check_data_paths names a missing one
        return None
    entries = sorted(os.scandir(path), key=lambda entry: entry.name)
    folders = [entry.name for entry in entries if entry.is_dir()]
    hidden = [name for name in folders if name.startswith(('.', '__', '@'))]
    if hidden:
        raise ConfigError(f'{where}: {path!r} holds {", ".join(hidden)}, which would count as '
                          f'{"a class" if len(hidden) == 1 else "classes"}; remove the folder.')
    if not folders:
        raise ConfigError(f'{where}: {path!r} holds no folder for a class; it takes one folder of '
                          'images for each class, named like it.')
    look_inside(path, folders, entries, dataset, where, split)
    return folders


def look_inside(path, folders, entries, dataset, where, split) -> None:
    """Counts what is no image, and classes without any."""
    extensions = tuple(one.lower() for one in dataset.get('extensions', EXTENSIONS))
    loose = [entry.name for entry in entries if entry.is_file() and not entry.name.startswith('.')]
    empty, others = [], {}
    for folder in folders:
        images = 0
        for _, _, files in os.walk(osp.join(path, folder)):
            for name in files:
                if name.lower().endswith(extensions):
                    images += 1
                elif not name.startswith('.'):
                    kind = osp.splitext(name)[1].lower() or name
                    others[kind] = others.get(kind, 0) + 1
        if not images:
            empty.append(folder)
    left_out = ', '.join(f'{count} {kind}' for kind, count in sorted(others.items()))
    if left_out:
        print_log(f'{where}: left out of {path!r}, being no {"/".join(extensions)}: {left_out}',
                  logger='current', level=30)
    if loose:
        print_log(f'{where}: {len(loose)} files lie in no class folder of {path!r} and are left '
                  f'out: {", ".join(loose[:3])}', logger='current', level=30)
    if empty and (split == 'train' or len(empty) == len(folders)):
        raise ConfigError(
            f'{where}: no images in the class {"folders" if len(empty) > 1 else "folder"} '
            f'{", ".join(empty[:5])}{", ..." if len(empty) > 5 else ""} of {path!r}'
            + (f' (it holds {left_out}, convert them or set extensions)' if left_out else '')
            + '; nothing can be learned of it.')


def check_names(names: list[str] | None, folders: list[str], where: str) -> None:
    """Class names that are folder names must be all of them, in mmpretrain's order."""
    if names is None or names == folders:
        return
    lacking = [name for name in names if name not in folders]
    extra = [folder for folder in folders if folder not in names]
    if not lacking and not extra:
        at = next(i for i, name in enumerate(names) if name != folders[i])
        raise ConfigError(
            f'{where}.classes is in another order than the folders, and labels are numbered by '
            f'the sorted folders: label {at} would be called {names[at]!r} but is '
            f'{folders[at]!r}. Write classes={folders[:10]!r}'
            + ('... ' if len(folders) > 10 else ' ') + 'or leave it out.')
    if len(lacking) < len(names) or len(names) != len(folders):
        raise ConfigError(
            f'{where} has {len(names)} classes but {len(folders)} class folders'
            + (f'; no folder is named {", ".join(map(str, lacking[:5]))}' if lacking and len(
                lacking) < len(names) else '')
            + (f'; no class is named {", ".join(extra[:5])}' if extra and len(extra) < len(
                folders) else '') + '. They must be the same.')
    print_log(f'{where}: classes are called otherwise than their folders: {folders[0]} is '
              f'{names[0]!r}, {folders[-1]} is {names[-1]!r}', logger='current')


def check_sizes(cfg, number: int, where: str) -> None:
    """The head and the data preprocessor have as many classes as the data."""
    model = cfg.get('model') or {}
    sections = {'model.head': model.get('head'), 'data_preprocessor': cfg.get('data_preprocessor'),
                'model.data_preprocessor': model.get('data_preprocessor')}
    for name, section in sections.items():
        value = (section or {}).get('num_classes')
        if value is not None and value != number:
            raise ConfigError(f'{name}.num_classes = {value} but {where} has {number} classes; '
                              f'set {name}.num_classes={number}.')


def check_topk(cfg, split: str, number: int) -> None:
    """No top-k beyond the number of classes."""
    head = (cfg.get('model') or {}).get('head') or {}
    places = [('model.head.topk', head.get('topk'))] if split == 'train' else []
    given = cfg.get(f'{split}_evaluator') or []
    for evaluator in [given] if isinstance(given, dict) else given:
        if 'topk' in evaluator:
            places.append((f'{split}_evaluator.topk', evaluator['topk']))
    for name, topk in places:
        largest = max([topk] if isinstance(topk, int) else topk or [0])
        if largest > number:
            raise ConfigError(f'{name} = {topk} asks for the best {largest} of {number} classes; '
                              f'set {name}=1.')


def check_list(dataset: dict, number: int, where: str) -> None:
    """An annotation file of a CustomDataset: every line is a path and a label below the number."""
    if dataset['type'].split('.')[-1] not in ('CustomDataset', 'ImageNet', 'ImageNet21k') or (
            not dataset.get('ann_file')):
        return
    path = osp.expanduser(osp.join(dataset.get('data_root') or '', dataset['ann_file']))
    if '://' in path or not osp.isfile(path) or not dataset.get('with_label', True):
        return
    with open(path, encoding='utf-8') as file:
        for count, line in enumerate(file, 1):
            label = line.strip().rsplit(' ', 1)[-1]
            if not label.isdigit() or ' ' not in line.strip() or int(label) >= number:
                raise ConfigError(f'{where}: line {count} of {path!r} is {line.strip()!r}; it '
                                  f'takes a path and a label from 0 to {number - 1}.')


def compare(found: dict[str, list | None], what: str, cure: str) -> None:
    """ConfigError where two data sets differ."""
    known = [(where, names) for where, names in found.items() if names is not None]
    for where, names in known[1:]:
        first, expected = known[0]
        if names == expected:
            continue
        extra = [name for name in names if name not in expected]
        lacking = [name for name in expected if name not in names]
        difference = ' and '.join(filter(None, [
            f'only {where} has {", ".join(map(str, extra[:5]))}' if extra else '',
            f'only {first} has {", ".join(map(str, lacking[:5]))}' if lacking else '',
        ])) or f'{first} and {where} have them in another order'
        raise ConfigError(f'{what} differ: {difference}; {cure}.')
