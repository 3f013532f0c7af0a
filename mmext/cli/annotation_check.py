"""Checks a COCO annotation file against a config before training starts.

mmdet keeps quiet about most of what can be wrong: class names that the file lacks simply have no
ground truth, labels follow the order of the file and not that of the config, annotations of
unknown images or without extent are dropped. A run then trains on nothing, or on wrong names.
"""

import difflib
import json
import os
import os.path as osp
from collections import Counter
from collections.abc import Iterator, Sequence

from mmengine.logging import print_log

from mmext.cli.config_walk import walk

ROLES = {'train': 'train_dataloader', 'val': 'val_dataloader', 'test': 'test_dataloader'}


class AnnotationError(ValueError):
    """The annotation file and the config do not fit; the message says where and the cure."""


def check_coco_file(
    ann_file: str,
    classes: Sequence[str] | None = None,
    image_dir: str | None = None,
    masks: bool = False,
    train: bool = False,
) -> dict:
    """Reads one COCO file and says what mmdet will make of it.

    Args:
        ann_file: path of the JSON file.
        classes: class names of the config, in its order; ``None`` takes those of the file.
        image_dir: folder that the file names are relative to; ``None`` skips looking for them.
        masks: whether instance masks are needed.
        train: whether the file is trained on, which needs usable annotations.

    Returns:
        a dict of counts (``images``, ``annotations``, ``usable``, ``crowd``, ``empty_images``,
        ``crowd_only_images``, ``without_mask``, ``degenerate``, ``orphans``, ``missing_images``,
        ``per_class``) with two lists of messages, ``errors`` and ``warnings``.
    """
    report = {'ann_file': ann_file, 'errors': [], 'warnings': []}
    data = read_coco(ann_file)
    names = [category['name'] for category in data['categories']]
    check_classes(names, classes, report)
    classes = names if classes is None else list(classes)
    name_of = {
        category['id']: category['name']
        for category in data['categories'] if category['name'] in classes
    }
    images = {image['id']: image for image in data['images']}
    check_unique(data, images, report)

    counts = Counter()
    per_class = dict.fromkeys(classes, 0)
    kinds = {image_id: set() for image_id in images}
    for ann in data['annotations']:
        if ann['image_id'] not in images:
            counts['orphans'] += 1
        elif ann['category_id'] not in name_of:
            counts['other_classes'] += 1
        elif ann.get('ignore', False) or not has_extent(ann, images[ann['image_id']]):
            counts['degenerate'] += 1
        elif ann.get('iscrowd', False):
            counts['crowd'] += 1
            kinds[ann['image_id']].add('crowd')
        else:
            counts['usable'] += 1
            counts['without_mask'] += not ann.get('segmentation')
            kinds[ann['image_id']].add('usable')
            per_class[name_of[ann['category_id']]] += 1
    report.update(
        images=len(images),
        annotations=len(data['annotations']),
        empty_images=sum(not kind for kind in kinds.values()),
        crowd_only_images=sum(kind == {'crowd'} for kind in kinds.values()),
        per_class=per_class,
        **{
            key: counts[key]
            for key in ('usable', 'crowd', 'without_mask', 'degenerate', 'orphans',
                        'other_classes')
        })
    missing = [] if image_dir is None else missing_images(data['images'], image_dir)
    report['missing_images'] = len(missing)
    judge(report, missing, image_dir, masks, train)
    return report


def judge(
    report: dict, missing: list[str], image_dir: str | None, masks: bool, train: bool
) -> None:
    """Turns counts into messages."""
    errors, warnings = report['errors'], report['warnings']
    images, usable = report['images'], report['usable']
    if not images:
        errors.append('it lists no images')
    if train and images and not usable:
        errors.append(
            f"none of its {report['annotations']} annotations can be trained on: "
            f"{report['crowd']} are crowd, {report['degenerate']} have no extent inside their "
            f"image, {report['other_classes']} are of classes that the config lacks, "
            f"{report['orphans']} belong to no listed image")
    if missing:
        errors.append(
            f'{len(missing)} of {images} images are not in {image_dir!r}: '
            f'{", ".join(missing[:3])}{", ..." if len(missing) > 3 else ""}; set data_prefix or '
            'take them out of the file')
    if masks and usable and report['without_mask'] == usable:
        errors.append(
            'no annotation has a segmentation, but the model has a mask head; use a model for '
            'boxes (a Faster R-CNN config) or a file with masks')
    elif masks and report['without_mask']:
        warnings.append(f"{report['without_mask']} of {usable} annotations have no segmentation "
                        'and are ignored by the mask loss')
    absent = [name for name, count in report['per_class'].items() if not count]
    if train and usable and absent:
        warnings.append(f'{len(absent)} of {len(report["per_class"])} classes have no annotation: '
                        f'{", ".join(absent[:5])}{", ..." if len(absent) > 5 else ""}')
    for key, text in [
        ('other_classes', 'annotations are of classes that the config lacks and are ignored'),
        ('degenerate', 'annotations have no extent inside their image and are dropped'),
        ('orphans', 'annotations belong to no listed image and are dropped'),
        ('crowd_only_images', 'images have crowd annotations only'),
    ]:
        if report[key]:
            warnings.append(f'{report[key]} {text}')


def read_coco(ann_file: str) -> dict:
    """The parsed file; AnnotationError where it is no COCO detection file."""
    try:
        with open(ann_file, encoding='utf-8') as file:
            data = json.load(file)
    except FileNotFoundError:
        raise AnnotationError(f'annotation file {ann_file!r} does not exist') from None
    except (ValueError, UnicodeDecodeError) as error:
        raise AnnotationError(f'annotation file {ann_file!r} is not JSON: {error}') from error
    absent = [
        key for key in ('images', 'annotations', 'categories')
        if not isinstance(data, dict) or not isinstance(data.get(key), list)
    ]
    if absent:
        raise AnnotationError(
            f'annotation file {ann_file!r} is no COCO detection file: it lacks the lists {absent}')
    for key, needed in [('images', ('id', 'file_name', 'height', 'width')),
                        ('categories', ('id', 'name')),
                        ('annotations', ('id', 'image_id', 'category_id', 'bbox', 'area'))]:
        for entry in data[key]:
            if not all(name in entry for name in needed):
                lacking = [name for name in needed if name not in entry]
                raise AnnotationError(
                    f'annotation file {ann_file!r}: entry {entry.get("id")} of {key!r} lacks '
                    f'{lacking}')
    return data


def check_classes(names: list[str], classes: Sequence[str] | None, report: dict) -> None:
    """Adds an error where the config's classes are not those of the file, in its order."""
    if classes is None:
        return
    lacking = [name for name in classes if name not in names]
    if lacking:
        hints = [difflib.get_close_matches(name, names, 1) for name in lacking]
        listed = [
            f'{name!r}' + (f' (did you mean {hint[0]!r}?)' if hint else '')
            for name, hint in zip(lacking, hints, strict=True)
        ]
        shown = ', '.join(names[:10]) + (', ...' if len(names) > 10 else '')
        report['errors'].append(
            f'it lacks {len(lacking)} of the {len(classes)} classes of the config: '
            f'{", ".join(listed[:5])}{", ..." if len(listed) > 5 else ""}; its own are: {shown}. '
            "Set metainfo=dict(classes=(...)) of the dataset, and num_classes of the heads")
        return
    in_file = [name for name in names if name in classes]
    if in_file != list(classes):
        first = next(i for i, name in enumerate(classes) if in_file[i] != name)
        report['errors'].append(
            'its classes are in another order than those of the config, and mmdet numbers labels '
            f'by the file: label {first} would be called {classes[first]!r} but is '
            f'{in_file[first]!r}. List the classes of metainfo in the order of the file')


def check_unique(data: dict, images: dict, report: dict) -> None:
    """Adds an error for identifiers that occur twice."""
    if len(images) != len(data['images']):
        report['errors'].append('some images share one id')
    if len({ann['id'] for ann in data['annotations']}) != len(data['annotations']):
        report['errors'].append('some annotations share one id')
    if len({category['name'] for category in data['categories']}) != len(data['categories']):
        report['errors'].append('some categories share one name')


def has_extent(ann: dict, image: dict) -> bool:
    """Whether mmdet keeps the box: it overlaps the image and is at least a pixel wide and high."""
    x, y, width, height = ann['bbox']
    inside = (
        min(x + width, image['width']) > max(x, 0)
        and min(y + height, image['height']) > max(y, 0))
    return inside and ann['area'] > 0 and width >= 1 and height >= 1


def missing_images(images: list[dict], image_dir: str) -> list[str]:
    """File names that are not below ``image_dir``; every folder is read once."""
    listings = {}
    missing = []
    for image in images:
        folder, name = osp.split(image['file_name'])
        if folder not in listings:
            path = osp.join(image_dir, folder)
            listings[folder] = set(os.listdir(path)) if osp.isdir(path) else set()
        if name not in listings[folder]:
            missing.append(image['file_name'])
    return missing


def check_dataset_cfg(cfg, splits: Sequence[str] = ('train', 'val')) -> list[dict]:
    """Checks every COCO dataset of a detection config, and its heads and metrics, with the data.

    Prints one line per file and its warnings. Only the first process of a distributed run reads
    the files. Datasets of other formats, and files or images that are not on a local disk, are
    left alone.

    Args:
        cfg: the config of a run in mmdet's scope.
        splits: which of 'train', 'val' and 'test' will be used.

    Returns:
        the reports of :func:`check_coco_file`.

    Raises:
        AnnotationError: all that is wrong, in one message.
    """
    model = cfg.get('model') or {}
    masks = has_key(model, 'mask_head')
    check_metrics(cfg, splits, masks)
    if int(os.environ.get('RANK', os.environ.get('SLURM_PROCID', 0))):
        return []
    reports, errors = [], []
    for split in splits:
        for where, dataset in coco_datasets(cfg.get(ROLES[split]), ROLES[split]):
            classes = dataset_classes(dataset)
            errors.extend(check_num_classes(model, classes, where))
            root = dataset.get('data_root') or ''
            ann_file = osp.join(root, dataset['ann_file'])
            if not is_local(ann_file) or dataset.get('backend_args'):
                continue
            image_dir = osp.join(root, (dataset.get('data_prefix') or {}).get('img', ''))
            report = check_coco_file(
                ann_file, classes, image_dir if is_local(image_dir) else None, masks,
                split == 'train')
            reports.append(report)
            errors += [f'{where}: {ann_file}: {error}' for error in report['errors']]
            if not report['errors']:
                print_log(
                    f"{ann_file}: {report['images']} images ({report['empty_images']} without "
                    f"annotation), {report['usable']} objects, {report['crowd']} crowds",
                    logger='current')
            for warning in report['warnings']:
                print_log(f'{ann_file}: {warning}', logger='current', level=30)
    if errors:
        raise AnnotationError('\n'.join(errors))
    return reports


def coco_datasets(node, where: str) -> Iterator[tuple[str, dict]]:
    """CocoDataset configs below a dataloader, through any wrapper (repeat, concatenate, ...)."""
    for path, dataset in walk(node, where, only=('dataset', 'datasets')):
        if str(dataset.get('type', '')).split('.')[-1] == 'CocoDataset' and dataset.get('ann_file'):
            yield path, dataset


def dataset_classes(dataset: dict) -> list[str]:
    """Class names of a dataset config: its metainfo, or COCO's 80."""
    classes = (dataset.get('metainfo') or {}).get('classes')
    if classes is None:
        from mmdet.datasets import CocoDataset

        return list(CocoDataset.METAINFO['classes'])
    if isinstance(classes, str):
        if not osp.isfile(classes):
            raise AnnotationError(
                f'metainfo.classes={classes!r} is neither a list of names nor a file of names; '
                f'one class alone is written ({classes!r},)')
        with open(classes, encoding='utf-8') as file:
            return [line.rstrip('\n\r') for line in file]
    return list(classes)


def check_num_classes(model, classes: list[str], where: str) -> list[str]:
    """Errors for heads whose ``num_classes`` is not the number of names."""
    wrong = sorted({
        f'{path}.num_classes={value}' for path, value in values_of(model, 'num_classes', 'model')
        if value != len(classes)
    })
    return [f'{where} has {len(classes)} classes but the model has {", ".join(wrong)}'
            ] if wrong else []


def check_metrics(cfg, splits: Sequence[str], masks: bool) -> None:
    """AnnotationError for mask metrics of a model without a mask head, known before training."""
    for split in splits:
        evaluators = cfg.get(f'{split}_evaluator') or []
        for evaluator in [evaluators] if isinstance(evaluators, dict) else evaluators:
            metric = evaluator.get('metric', [])
            if 'segm' in ([metric] if isinstance(metric, str) else metric) and not masks and (
                    has_key(cfg.get('model'), 'roi_head')):
                raise AnnotationError(
                    f"{split}_evaluator.metric={metric} wants masks but the model has no "
                    "mask_head; set metric='bbox'")


def values_of(node, key: str, path: str) -> Iterator[tuple[str, int]]:
    """Where ``key`` occurs below the RoI and box heads of a model config, with its value."""
    for where, part in walk(node, path, only=('roi_head', 'bbox_head', 'mask_head')):
        if isinstance(part.get(key), int):
            yield where, part[key]


def has_key(node, key: str) -> bool:
    """Whether a config has ``key`` with a value anywhere."""
    return any(part.get(key) for _, part in walk(node))


def is_local(path: str) -> bool:
    return '://' not in path and not path.startswith('s3:')
