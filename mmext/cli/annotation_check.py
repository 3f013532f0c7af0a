"""Checks a COCO annotation file against a config before training starts.

mmdet keeps quiet about most of what can be wrong: class names that the file lacks simply have no
ground truth, labels follow the order of the file and not that of the config, annotations of
unknown images or without extent are dropped. A run then trains on nothing, or on wrong names.
What each field must be stands in ``coco_fields.py``.
"""

import difflib
import json
import os
import os.path as osp
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from mmengine.logging import print_log

from mmext.cli.config_walk import walk
from mmext.datasets.loading import ImageError, read_header, turn

from .coco_fields import check_fields, column
from .paths import outside

HEADERS = 5_000  # images whose size is looked up before a run: seconds on a local disk
# Data sets whose files are COCO's, instances only; LVIS writes coco_url instead of file_name
INSTANCES = {'CocoDataset', 'LVISV1Dataset', 'CityscapesDataset'}
ROLES = {'train': 'train_dataloader', 'val': 'val_dataloader', 'test': 'test_dataloader'}


class AnnotationError(ValueError):
    """The annotation file and the config do not fit; the message says where and the cure."""


def check_coco_file(
    ann_file: str,
    classes: Sequence[str] | None = None,
    image_dir: str | None = None,
    masks: bool | None = None,
    train: bool = False,
    evaluated: bool = False,
    ground_truth: bool = True,
    polygons_only: bool = False,
    headers: int | None = HEADERS,
    color_type: str = 'color',
) -> dict:
    """Reads one COCO file and says what mmdet and pycocotools will make of it.

    Args:
        ann_file: path of the JSON file.
        classes: class names of the config, in its order; ``None`` takes those of the file.
        image_dir: folder that the file names are relative to; ``None`` skips looking for them.
        masks: whether instance masks are needed; ``None`` checks those that are there.
        train: whether the file is trained on, which needs usable annotations.
        evaluated: whether it is evaluated against.
        ground_truth: False for a test split whose annotations nobody uses or has.
        polygons_only, color_type: of the pipeline's LoadAnnotations and LoadImageFromFile.
        headers: how many image files are opened to compare sizes, evenly spaced; ``None``: all.
            (The others are compared when they are loaded.)

    Returns:
        a dict of counts (``images``, ``annotations``, ``usable``, ``crowd``, ``empty_images``,
        ``crowd_only_images``, ``without_mask``, ``degenerate``, ``other_classes``,
        ``missing_images``, ``per_class``) with two lists of messages, ``errors`` and
        ``warnings``, and ``image_ids``, ``category_ids`` for comparisons.
    """
    report = {'ann_file': ann_file, 'errors': [], 'warnings': []}
    data = read_coco(ann_file, ground_truth)
    faults, warnings, columns = check_fields(
        data, masks, evaluated, ground_truth, classes, polygons_only)
    if columns:
        names = [one['name'] if type(one.get('name')) is str else '' for one in data['categories']]
        check_classes(names, classes, report)
        count(data, names, columns, classes, report)
    missing = []
    if columns and image_dir is not None:
        inside = [image for image in data['images'] if type(image.get('file_name')) is str
                  and image['file_name'] and not outside(image['file_name'])]
        missing = missing_images(inside, image_dir)
        lost = set(missing)
        check_files([image for image in inside if image['file_name'] not in lost], image_dir,
                    headers, color_type, faults)
    report['missing_images'] = len(missing)
    report['errors'] += faults.lines()
    report['faults'] = faults.counts.total()
    judge(report, missing, image_dir, train, evaluated)
    report['warnings'] += [
        f'{total} x {kind}; the first: {warnings.examples[kind][0]}'
        for kind, total in warnings.counts.items()]
    return report


def count(data, names, columns, classes, report) -> None:
    """Adds the numbers of the report."""
    classes = names if classes is None else list(classes)
    crowd, dropped = columns['crowd'], columns['dropped']
    usable = ~dropped & ~crowd
    index = columns['image']
    total = len(data['images'])
    filled, crowds = np.zeros(total, bool), np.zeros(total, bool)
    filled[index[usable]] = True
    crowds[index[~dropped & crowd]] = True
    per_class = np.bincount(columns['category'][usable], minlength=len(names))
    by_name = dict(zip(names, per_class.tolist(), strict=True))
    report.update(
        images=total,
        annotations=len(data['annotations']),
        usable=int(usable.sum()),
        crowd=int((~dropped & crowd).sum()),
        counted=int((columns['used'] & ~crowd).sum()),
        degenerate=int((dropped & columns['used']).sum()),
        other_classes=int(((columns['category'] >= 0) & ~columns['used']).sum()),
        without_mask=int((usable & ~columns.get('has_mask', usable)).sum()),
        empty_images=int((~filled & ~crowds).sum()),
        crowd_only_images=int((crowds & ~filled).sum()),
        per_class={name: by_name.get(name, 0) for name in classes},
        image_ids={image.get('id') for image in data['images'] if type(image.get('id')) is int},
        category_ids=dict(zip(names, column(data['categories'], 'id'), strict=True)))


def judge(
    report: dict, missing: list[str], image_dir: str | None, train: bool, evaluated: bool
) -> None:
    """Turns counts into messages."""
    errors, warnings = report['errors'], report['warnings']
    images = report.get('images')
    if images is None:  # no list of objects at all
        return
    if not images:
        errors.append('it lists no images')
    if train and images and not report['usable']:
        errors.append(
            f"none of its {report['annotations']} annotations can be trained on: "
            f"{report['crowd']} are crowd, {report['degenerate']} have no extent inside their "
            f"image, {report['other_classes']} are of classes that the config lacks")
    elif evaluated and images and not report['counted']:
        errors.append(
            f"none of its {report['annotations']} annotations is evaluated; give the split's "
            'ground truth, or write predictions only: format_only=True and outfile_prefix=PATH '
            'of the evaluator')
    if missing:
        errors.append(
            f'{len(missing)} of {images} images are not in {image_dir!r}: '
            f'{", ".join(missing[:3])}{", ..." if len(missing) > 3 else ""}; set data_prefix or '
            'take them out of the file')
    absent = [name for name, total in report['per_class'].items() if not total]
    if train and report['usable'] and absent:
        warnings.append(f'{len(absent)} of {len(report["per_class"])} classes have no annotation: '
                        f'{", ".join(absent[:5])}{", ..." if len(absent) > 5 else ""}')
    for key, text in [
        ('other_classes', 'annotations are of classes that the config lacks and are ignored'),
        ('degenerate', 'annotations have no extent inside their image and are dropped'),
        ('crowd_only_images', 'images have crowd annotations only'),
    ]:
        if report[key]:
            warnings.append(f'{report[key]} {text}')


def read_coco(ann_file: str, ground_truth: bool = True) -> dict:
    """The parsed file; AnnotationError where it is no COCO detection file."""
    try:
        with open(ann_file, encoding='utf-8') as file:
            data = json.load(file)
    except FileNotFoundError:
        raise AnnotationError(f'annotation file {ann_file!r} does not exist') from None
    except OSError as error:
        raise AnnotationError(f'annotation file {ann_file!r} cannot be read: {error}') from None
    except (ValueError, RecursionError) as error:
        raise AnnotationError(f'annotation file {ann_file!r} is not JSON: {error}') from error
    if not ground_truth and isinstance(data, dict):
        data.setdefault('annotations', [])
    absent = [
        key for key in ('images', 'annotations', 'categories')
        if not isinstance(data, dict) or not isinstance(data.get(key), list)
    ]
    if absent:
        raise AnnotationError(
            f'annotation file {ann_file!r} is no COCO detection file: it lacks the lists {absent}')
    for image in data['images']:
        if 'coco_url' in image:  # LVIS: mmdet takes its last two parts, train2017/000000000009.jpg
            image.setdefault('file_name', '/'.join(image['coco_url'].split('/')[-2:]))
    return data


def check_files(images, image_dir, headers, color_type, faults) -> None:
    """Compares annotated sizes with those of the files, from their first bytes."""
    if headers is not None and len(images) > headers:
        images = [images[i] for i in np.linspace(0, len(images) - 1, headers).astype(int)]

    def fault(image):
        size = image.get('height'), image.get('width')
        try:
            header = read_header(osp.join(image_dir, image['file_name']))
        except ImageError as error:
            return str(error)
        if header is None or {type(side) for side in size} != {int}:
            return None  # unknown to Pillow: found when it is loaded; or reported already
        orientation = header[1] if color_type in ('color', 'grayscale') else 1
        return turn(header[0], orientation, size)[1]

    with ThreadPoolExecutor(8) as pool:  # waits for disks
        found = list(pool.map(fault, images))
    for kind in ('image of another size', 'EXIF orientation', 'image too large'):
        faults.add(kind, [i for i, one in enumerate(found) if one and kind == (
            'EXIF orientation' if 'EXIF' in one else 'image too large' if 'large' in one
            else 'image of another size')], lambda i: (
                f'image {images[i].get("id")}: {images[i]["file_name"]} {found[i]}'))


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
    in_file = list(dict.fromkeys(name for name in names if name in classes))
    if in_file != list(classes):
        first = next(i for i, name in enumerate(classes) if in_file[i] != name)
        report['errors'].append(
            'its classes are in another order than those of the config, and mmdet numbers labels '
            f'by the file: label {first} would be called {classes[first]!r} but is '
            f'{in_file[first]!r}. List the classes of metainfo in the order of the file')


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
    check_metrics(cfg, splits, has_key(model, 'mask_head'))
    if int(os.environ.get('RANK', os.environ.get('SLURM_PROCID', 0))):
        return []
    reports, errors = {}, []
    for split in splits:
        metrics = evaluators(cfg, split)
        truth = split == 'train' or any(not metric.get('format_only') for metric in metrics)
        of_split = []
        for where, dataset in coco_datasets(cfg.get(ROLES[split]), ROLES[split]):
            classes = dataset_classes(dataset)
            errors.extend(check_num_classes(model, classes, where))
            pipeline = dataset.get('pipeline') or []
            load = find_step(pipeline, 'LoadAnnotations')
            masks = bool(load.get('with_mask')) or uses_masks(metrics)
            if split == 'train' and not masks and has_key(model.get('roi_head'), 'mask_head'):
                if load:
                    errors.append(f'{where}: the model has a mask_head but LoadAnnotations of '
                                  'its pipeline does not load masks; set with_mask=True')
                masks = True
            root = dataset.get('data_root') or ''
            ann_file = osp.join(root, dataset['ann_file'])
            if not is_local(ann_file) or dataset.get('backend_args'):
                continue
            image_dir = osp.join(root, (dataset.get('data_prefix') or {}).get('img', ''))
            arguments = (
                ann_file, tuple(classes), image_dir if is_local(image_dir) else None, masks,
                split == 'train', split != 'train' and truth, truth,
                bool(load) and not load.get('poly2mask', True), HEADERS,
                find_step(pipeline, 'LoadImageFromFile').get('color_type', 'color'))
            if arguments in reports:  # test data is mostly the validation data
                of_split.append((dataset, reports[arguments]))
                continue
            report = reports[arguments] = check_coco_file(*arguments)
            of_split.append((dataset, report))
            if report['errors']:
                errors.append('\n  '.join([f'{where}: {ann_file}:', *report['errors']]))
            if not report['errors']:
                print_log(
                    f"{ann_file}: {report['images']} images ({report['empty_images']} without "
                    f"annotation), {report['usable']} objects, {report['crowd']} crowds",
                    logger='current')
            for warning in report['warnings']:
                print_log(f'{ann_file}: {warning}', logger='current', level=30)
        if split != 'train' and of_split and not any(
                report['errors'] for _, report in of_split):
            errors += check_evaluators(metrics, of_split, split)
    if errors:
        raise AnnotationError('\n'.join(errors))
    return list(reports.values())


def evaluators(cfg, split: str) -> list[dict]:
    """The evaluator configs of a split."""
    given = cfg.get(f'{split}_evaluator') or []
    return [given] if isinstance(given, dict) else list(given)


def uses_masks(metrics: list[dict]) -> bool:
    return any('segm' in ([one] if isinstance(one := metric.get('metric', []), str) else one)
               for metric in metrics)


def find_step(pipeline, name: str) -> dict:
    """The config of the first transform of that type in a pipeline; empty where there is none."""
    for step in pipeline:
        if isinstance(step, dict) and str(step.get('type', '')).split('.')[-1] == name:
            return step
    return {}


def check_evaluators(metrics: list[dict], of_split: list[tuple], split: str) -> list[str]:
    """Errors where the evaluator's ground truth is not that of the data set it evaluates.

    CocoMetric takes it from ``ann_file``; images that the data set lacks count as missed objects,
    categories of another order as wrong ones.
    """
    errors = []
    for metric in metrics:
        path = metric.get('ann_file')
        if str(metric.get('type', '')).split('.')[-1] != 'CocoMetric' or not path or (
                not is_local(path)):
            continue
        files = [report['ann_file'] for _, report in of_split]
        cure = (f'set {split}_evaluator.ann_file to the data set\'s {files[0]!r}')
        if any('indices' in dataset and dataset['indices'] is not None for dataset, _ in of_split):
            errors.append(f'{split}_evaluator.ann_file={path!r} counts every image of the file but '
                          'the data set takes a part of it (indices); cut the file with '
                          'coco_subset.py instead')
        if len(files) == 1 and osp.exists(path) and osp.samefile(path, files[0]):
            continue
        try:
            data = read_coco(path, not metric.get('format_only'))
            ids = {image['id'] for image in data['images']}
            categories = {one['name']: one['id'] for one in data['categories']}
        except (AnnotationError, KeyError, TypeError) as error:
            errors.append(f'{split}_evaluator.ann_file={path!r}: {error}; {cure}')
            continue
        ours = set().union(*(report['image_ids'] for _, report in of_split))
        if ids != ours:
            errors.append(
                f'{split}_evaluator.ann_file={path!r} has {len(ids - ours)} images that the data '
                f'set ({", ".join(files)}) lacks, and lacks {len(ours - ids)} of its {len(ours)} '
                f'images; {cure}')
        elif any(report['category_ids'] != categories for _, report in of_split):
            errors.append(f'{split}_evaluator.ann_file={path!r} has other categories than the '
                          f'data set; {cure}')
        elif not metric.get('format_only'):
            report = check_coco_file(path, list(of_split[0][1]['per_class']), None,
                                     uses_masks([metric]), evaluated=True)
            errors += [f'{split}_evaluator.ann_file={path!r}: {error}'
                       for error in report['errors']]
    return errors


def coco_datasets(node, where: str) -> Iterator[tuple[str, dict]]:
    """Configs of COCO's kind below a dataloader, through any wrapper (repeat, concatenate, ...)."""
    for path, dataset in walk(node, where, only=('dataset', 'datasets')):
        if str(dataset.get('type', '')).split('.')[-1] in INSTANCES and dataset.get('ann_file'):
            yield path, dataset


def dataset_classes(dataset: dict) -> list[str]:
    """Class names of a dataset config: its metainfo, or those of its type."""
    classes = (dataset.get('metainfo') or {}).get('classes')
    if classes is None:
        from mmdet.registry import DATASETS

        return list(DATASETS.get(dataset['type']).METAINFO.get('classes', ()))
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
    for split in set(splits) - {'train'}:
        for evaluator in evaluators(cfg, split):
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
