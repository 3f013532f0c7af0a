"""Checks panoptic and semantic data against a config before training starts.

mmdet says nothing about most of what can be wrong: pixels whose id the JSON does not know are
ignored, labels beyond the classes end deep in a loss or a kernel, a missing package or PNG stops a
run after the model was built.
"""

import importlib.util
import json
import os
import os.path as osp
from collections.abc import Iterator, Sequence

import cv2
import numpy as np
from mmengine.logging import print_log

from mmext.cli.annotation_check import (
    ROLES,
    AnnotationError,
    check_classes,
    dataset_classes,
    is_local,
    missing_images,
)
from mmext.cli.config_walk import walk

PANOPTIC = {'CocoPanopticDataset', 'ADE20KPanopticDataset'}
SEMANTIC = {'BaseSegDataset', 'CocoSegDataset', 'ADE20KSegDataset'}
SAMPLES = 64  # label images read before a run; check_coco.py reads all
# what mmdet's classes import when they are built: module and how to get it
PACKAGES = {
    'CocoPanopticMetric': ('panopticapi', "pip install 'mmext[panoptic]'"),
    'LoadPanopticAnnotations': ('panopticapi', "pip install 'mmext[panoptic]'"),
    'LVISV1Dataset': ('lvis', 'pip install --no-deps lvis'),
    'LVISMetric': ('lvis', 'pip install --no-deps lvis'),
    'CityScapesMetric': ('cityscapesscripts', 'pip install cityscapesscripts'),
}


def check_segmentation_cfg(cfg, splits: Sequence[str] = ('train', 'val'),
                           samples: int | None = SAMPLES) -> list[dict]:
    """Checks packages, panoptic and semantic data, and the class counts of their heads.

    Only the first process of a distributed run reads files; data that are not on a local disk are
    left alone.

    Args:
        cfg: the config of a run in mmdet's scope.
        splits: which of 'train', 'val' and 'test' will be used.
        samples: how many label images of a data set to read, evenly spread; None: all.

    Returns:
        the reports of :func:`check_panoptic_file` and :func:`check_semantic_maps`.

    Raises:
        AnnotationError: all that is wrong, in one message.
    """
    for split in splits:
        for key in (ROLES[split], f'{split}_evaluator'):
            check_packages(cfg.get(key), key)
    if int(os.environ.get('RANK', os.environ.get('SLURM_PROCID', 0))):
        return []
    reports, errors = [], []
    for where, kind, dataset in segmentation_datasets(cfg, splits):
        report = check_dataset(dataset, kind, samples)
        if report is None:
            continue
        found = report['errors'] or head_errors(cfg.get('model') or {}, report)
        errors += [f"{where}: {report['ann_file']}: {error}" for error in found]
        if not found:
            print_log(f"{report['ann_file']}: {report['images']} images, {report['read']} label "
                      'images read', logger='current')
        for warning in report['warnings']:
            print_log(f"{report['ann_file']}: {warning}", logger='current', level=30)
        reports.append(report)
    if errors:
        raise AnnotationError('\n'.join(errors))
    return reports


def check_packages(part, path: str) -> None:
    """AnnotationError for an absent package that a part of a config needs, data set or metric."""
    for where, node in walk(part, path):
        name = str(node.get('type', '')).split('.')[-1]
        package, cure = PACKAGES.get(name, (None, None))
        if package and importlib.util.find_spec(package) is None:
            raise AnnotationError(
                f'{where} ({name}) needs the package {package}, which is not installed: {cure}')


def segmentation_datasets(cfg, splits: Sequence[str]) -> Iterator[tuple[str, str, dict]]:
    """(place, 'panoptic' or 'semantic', config) of every such data set, through any wrapper."""
    for split in splits:
        for where, node in walk(cfg.get(ROLES[split]), ROLES[split], ('dataset', 'datasets')):
            name = str(node.get('type', '')).split('.')[-1]
            if name in PANOPTIC:
                yield where, 'panoptic', node
            elif name in SEMANTIC:
                yield where, 'semantic', node


def check_dataset(dataset: dict, kind: str, samples: int | None) -> dict | None:
    """The report of one data set's config; None where its files are not on a local disk."""
    root = dataset.get('data_root') or ''
    prefix = {key: osp.join(root, value)
              for key, value in (dataset.get('data_prefix') or {}).items() if value is not None}
    ann_file = osp.join(root, dataset['ann_file']) if dataset.get('ann_file') else ''
    if dataset.get('backend_args') or not all(map(is_local, [*prefix.values(), ann_file])):
        return None
    classes = dataset_classes(dataset)
    if kind == 'panoptic':
        return check_panoptic_file(
            ann_file, prefix.get('seg'), prefix.get('img'), classes, samples)
    load = next((step for step in dataset.get('pipeline') or () if 'LoadAnnotations' in str(
        step.get('type'))), {})
    return check_semantic_maps(
        prefix.get('img_path', root), prefix.get('seg_map_path'), classes,
        bool(load.get('reduce_zero_label')), dataset.get('img_suffix', '.jpg'),
        dataset.get('seg_map_suffix', '.png'), ann_file, samples)


def head_errors(model: dict, report: dict) -> list[str]:
    """One error for heads whose numbers of things and stuff are not those of the data."""
    want = {'num_things_classes': report['things'], 'num_stuff_classes': report['stuff']}
    wrong = [f'{where}.{key}={node[key]}' for where, node in walk(model, 'model')
             for key, count in want.items() if node.get(key, count) != count]
    return [f"it has {report['things']} things and {report['stuff']} stuff classes but the config "
            f"has {', '.join(wrong)}"] if wrong else []


# ------------------------------------------------------------------------------------- panoptic


def check_panoptic_file(ann_file: str, seg_dir: str | None, image_dir: str | None = None,
                        classes: Sequence[str] | None = None,
                        samples: int | None = None) -> dict:
    """Reads one COCO panoptic file and the PNGs beside it.

    Args:
        ann_file: path of the JSON file.
        seg_dir: folder of the PNGs; None: look at the JSON alone.
        image_dir: folder of the images; None: do not look for them.
        classes: class names of the config, in its order; None takes those of the file.
        samples: how many PNGs to read, evenly spread; None: all.

    Returns:
        a dict of counts (``images``, ``segments``, ``things``, ``stuff``, ``read``) with two lists
        of messages, ``errors`` and ``warnings``.
    """
    data = read_panoptic(ann_file)
    report = {'ann_file': ann_file, 'images': len(data['images']), 'read': 0,
              'segments': sum(len(ann['segments_info']) for ann in data['annotations']),
              'errors': [], 'warnings': []}
    errors = report['errors']
    check_classes([category['name'] for category in data['categories']], classes, report)
    used = [category for category in data['categories']
            if classes is None or category['name'] in classes]
    is_thing = [bool(category['isthing']) for category in used]
    report.update(things=sum(is_thing), stuff=len(used) - sum(is_thing))
    if is_thing != sorted(is_thing, reverse=True):
        errors.append('its categories mix things and stuff; list all things before all stuff, '
                      'heads number them so')

    images = {image['id']: image for image in data['images']}
    known = {category['id'] for category in data['categories']}
    of_image = {}
    for ann in data['annotations']:
        of_image.setdefault(ann['image_id'], []).extend(ann['segments_info'])
    unknown = sorted({segment['category_id'] for segments in of_image.values()
                      for segment in segments} - known)
    if unknown:
        errors.append(f'segments have category ids that it does not list: {shorten(unknown)}')
    orphans = set(of_image) - set(images)
    if orphans:
        errors.append(f'{len(orphans)} annotations belong to no listed image: '
                      f'{shorten(sorted(orphans))}')
    if set(images) - set(of_image):
        report['warnings'].append(f'{len(set(images) - set(of_image))} images have no annotation')

    if image_dir is not None:
        missing = missing_images(data['images'], image_dir)
        if missing:
            errors.append(f'{len(missing)} of {len(images)} images are not in {image_dir!r}: '
                          f'{shorten(missing)}')
    if seg_dir is not None:
        # the name that mmdet looks for
        pngs = [{**image, 'file_name': image['file_name'].replace('.jpg', '.png')}
                for image in data['images'] if image['id'] in of_image]
        missing = missing_images(pngs, seg_dir)
        if missing:
            errors.append(f'{len(missing)} of {len(pngs)} panoptic PNGs are not in {seg_dir!r}: '
                          f'{shorten(missing)}; set data_prefix.seg or unpack them')
        else:
            check_pngs(spread(pngs, samples), seg_dir, of_image, report)
    return report


def check_pngs(images: Sequence[dict], seg_dir: str, of_image: dict, report: dict) -> None:
    """Adds what is wrong with the ids in the PNGs of some images."""
    faults = {}
    for image in images:
        name = image['file_name']
        png = cv2.imread(osp.join(seg_dir, name), cv2.IMREAD_COLOR)
        report['read'] += 1
        if png is None:
            faults.setdefault('cannot be read as an image', []).append(name)
            continue
        if png.shape[:2] != (image['height'], image['width']):
            faults.setdefault('are of another size than their image', []).append(
                f'{name}: {png.shape[1]} x {png.shape[0]}')
        blue, green, red = np.moveaxis(png.astype(np.int64), -1, 0)
        inside = set(np.unique(red + 256 * green + 256**2 * blue).tolist()) - {0}  # 0: no segment
        listed = {segment['id'] for segment in of_image[image['id']]}
        if inside - listed:
            faults.setdefault('have segment ids that the JSON does not know', []).append(
                f'{name}: {shorten(sorted(inside - listed))}')
        if listed - inside:
            faults.setdefault('lack segment ids of the JSON', []).append(
                f'{name}: {shorten(sorted(listed - inside))}')
    report['errors'] += [f'{len(names)} of the {report["read"]} PNGs read {fault} '
                         f'({shorten(names, 2)})' for fault, names in faults.items()]


def read_panoptic(ann_file: str) -> dict:
    """The parsed file; AnnotationError where it is no COCO panoptic file."""
    try:
        with open(ann_file, encoding='utf-8') as file:
            data = json.load(file)
    except FileNotFoundError:
        raise AnnotationError(f'annotation file {ann_file!r} does not exist') from None
    except (ValueError, UnicodeDecodeError) as error:
        raise AnnotationError(f'annotation file {ann_file!r} is not JSON: {error}') from error
    for key, needed in [('images', ('id', 'file_name', 'height', 'width')),
                        ('categories', ('id', 'name', 'isthing')),
                        ('annotations', ('image_id', 'file_name', 'segments_info'))]:
        if not isinstance(data, dict) or not isinstance(data.get(key), list):
            raise AnnotationError(
                f'annotation file {ann_file!r} is no COCO panoptic file: it lacks the list {key!r}')
        for entry in data[key]:
            lacking = [name for name in needed if name not in entry]
            if lacking:
                raise AnnotationError(
                    f'annotation file {ann_file!r} is no COCO panoptic file: an entry of {key!r} '
                    f'lacks {lacking}')
    for ann in data['annotations']:
        for segment in ann['segments_info']:
            lacking = [name for name in ('id', 'category_id', 'bbox', 'area')
                       if name not in segment]
            if lacking:
                raise AnnotationError(f'annotation file {ann_file!r}: a segment of image '
                                      f'{ann["image_id"]} lacks {lacking}')
    return data


# ------------------------------------------------------------------------------------- semantic


def check_semantic_maps(image_dir: str, map_dir: str | None, classes: Sequence[str],
                        reduce_zero_label: bool = False, image_suffix: str = '.jpg',
                        map_suffix: str = '.png', ann_file: str = '',
                        samples: int | None = None) -> dict:
    """Looks for a label map beside each image and for labels out of range.

    Args:
        image_dir, map_dir: folders; a map has the name of its image, with another suffix.
        classes: class names; labels are 0 to their number - 1, and 255 for pixels to ignore.
        reduce_zero_label: labels start at 1 and 0 is ignored, too (ADE20K).
        ann_file: a text file of names without suffix, where not all images are used.
        samples: how many maps to read, evenly spread; None: all.

    Returns:
        as :func:`check_panoptic_file`, every class being stuff.
    """
    report = {'ann_file': map_dir or image_dir, 'read': 0, 'things': 0, 'stuff': len(classes),
              'errors': [], 'warnings': []}
    errors = report['errors']
    if not classes:
        errors.append('the data set has no class names; set metainfo=dict(classes=(...))')
    if osp.isfile(ann_file):
        with open(ann_file, encoding='utf-8') as file:
            names = [line.strip() for line in file if line.strip()]
    else:
        names = [name.removesuffix(image_suffix) for name in files_below(image_dir, image_suffix)]
    report['images'] = len(names)
    if not names:
        errors.append(f'no image in {image_dir!r} ends in {image_suffix!r}; set img_suffix')
    if map_dir is None:
        return report
    there = set(files_below(map_dir, map_suffix))
    missing = [name + map_suffix for name in names if name + map_suffix not in there]
    if missing:
        errors.append(f'{len(missing)} of {len(names)} label maps are missing: {shorten(missing)}; '
                      'set data_prefix.seg_map_path, seg_map_suffix, or make them')
        return report
    first = int(reduce_zero_label)
    faults = {}
    for name in spread(names, samples):
        labels = cv2.imread(osp.join(map_dir, name + map_suffix), cv2.IMREAD_UNCHANGED)
        report['read'] += 1
        if labels is None:
            faults.setdefault('cannot be read as an image', []).append(name)
        elif labels.ndim != 2:
            faults.setdefault('are color images; a label map has one channel', []).append(name)
        else:
            values = np.unique(labels)
            wrong = values[(values >= len(classes) + first) & (values != 255)].tolist()
            if wrong:
                faults.setdefault(
                    f'have labels out of range (known are {first} to {len(classes) - 1 + first}, '
                    'and 255 to ignore)', []).append(f'{name}: {shorten(wrong)}')
    errors += [f'{len(names)} of the {report["read"]} label maps read {fault} '
               f'({shorten(names, 2)})' for fault, names in faults.items()]
    return report


def files_below(folder: str, suffix: str) -> list[str]:
    """Paths relative to ``folder``, sorted."""
    return sorted(osp.relpath(osp.join(path, file), folder)
                  for path, _, files in os.walk(folder) for file in files if file.endswith(suffix))


def spread(items: Sequence, count: int | None) -> list:
    """``count`` of the items, evenly spread; None: all."""
    if count is None or count >= len(items):
        return list(items)
    return [items[i * len(items) // count] for i in range(count)]


def shorten(items: Sequence, count: int = 3) -> str:
    return ', '.join(map(str, items[:count])) + (', ...' if len(items) > count else '')
