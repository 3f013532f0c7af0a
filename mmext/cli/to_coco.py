"""LabelMe and YOLO folders to COCO: what tools/dataset_converters/to_coco.py does."""

import json
import sys
import warnings
from pathlib import Path

import numpy as np
import yaml
from pycocotools import mask as coco_mask

from mmext.datasets.loading import read_header

from .annotation_check import check_coco_file
from .config_check import ConfigError
from .outputs import check_outputs
from .paths import below

SUFFIXES = {'.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp'}


def readers():
    try:
        from supervision.dataset.formats import labelme, yolo
    except ImportError as error:
        raise ConfigError("reading LabelMe and YOLO takes supervision: pip install "
                          f"'mmext[convert]' ({error})") from error
    return labelme, yolo


def find_images(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob('*') if path.suffix.lower() in SUFFIXES)


def seen_size(path: Path) -> tuple[int, int, int]:
    """Height and width as a viewer shows the image, and its EXIF orientation."""
    header = read_header(path)
    if header is None:
        raise ConfigError(f'{path} is no image')
    (height, width), orientation, _ = header
    return (width, height, orientation) if orientation >= 5 else (height, width, orientation)


def from_labelme(args):
    """Class names, and (image path, (height, width), detections) for each JSON file."""
    labelme, _ = readers()
    entries = []
    for path in sorted(args.labels.rglob('*.json')):
        try:
            entry = json.loads(path.read_text(encoding='utf-8'))
        except ValueError as error:
            raise ConfigError(f'{path} is not JSON: {error}') from error
        if isinstance(entry, dict) and 'shapes' in entry:  # not the COCO file of the last call
            entries.append((path, entry))
    check_outputs([args.out], True, [path for path, _ in entries])
    names = sorted({str(shape.get('label')) for _, entry in entries for shape in entry['shapes']
                    if shape.get('shape_type') in labelme.SUPPORTED_SHAPE_TYPES})
    index = {name: i for i, name in enumerate(names)}

    def objects():
        for path, entry in entries:
            # relative to the JSON file, with the separators of the system that wrote it
            name = Path(str(entry.get('imagePath', '')).replace('\\', '/')).name
            folder = path.parent.relative_to(args.labels)
            image = below(args.images, str(folder / name))
            if not image.is_file():
                raise ConfigError(f'{path}: its image {str(image)!r} does not exist')
            size = seen_size(image)[:2]
            given = entry.get('imageHeight'), entry.get('imageWidth')
            if None not in given and given != size:
                raise ConfigError(f'{path}: it was drawn on {given[1]} x {given[0]} pixels but '
                                  f'{image.name} has {size[1]} x {size[0]}')
            polygons = any(shape.get('shape_type') == 'polygon' for shape in entry['shapes'])
            try:
                yield image, size, labelme.labelme_shapes_to_detections(
                    entry['shapes'], index, size[::-1], polygons and not args.boxes)
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(f'{path}: {error}') from error

    return names, objects()


def from_yolo(args):
    """As ``from_labelme``, for every image."""
    _, yolo = readers()
    try:
        names = yaml.safe_load(args.data.read_text(encoding='utf-8'))['names']
        names = [str(names[key]) for key in (sorted(names) if isinstance(names, dict) else
                                             range(len(names)))]
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise ConfigError(f'{args.data} holds no names: of classes ({error})') from error

    def objects():
        for image in find_images(args.images):
            height, width, _ = seen_size(image)
            path = (args.labels / image.relative_to(args.images)).with_suffix('.txt')
            text = path.read_text(encoding='utf-8') if path.is_file() else ''
            lines = [line for line in text.splitlines() if line.strip()]
            polygons = any(len(line.split()) > 6 for line in lines)
            try:
                found = yolo.yolo_annotations_to_detections(
                    lines, (width, height), polygons and not args.boxes)
            except ValueError as error:
                raise ConfigError(f'{path}: {error}') from error
            if len(found) and not 0 <= found.class_id.min() <= found.class_id.max() < len(names):
                raise ConfigError(f'{path}: it has a class {found.class_id.max()} but {args.data} '
                                  f'names {len(names)}')
            yield image, (height, width), found

    return names, objects()


def convert(names, objects, root: Path) -> dict:
    """A COCO dict."""
    coco = dict(images=[], annotations=[], categories=[
        dict(id=i + 1, name=name) for i, name in enumerate(names)])
    for image, (height, width), found in objects:
        image_id = len(coco['images']) + 1
        coco['images'].append(dict(id=image_id, file_name=image.relative_to(root).as_posix(),
                                   height=height, width=width))
        for i, (box, label) in enumerate(zip(found.xyxy, found.class_id, strict=True)
                                         if len(found) else []):
            low = np.clip(box[:2], 0, (width, height))
            high = np.clip(box[2:], 0, (width, height))
            one = dict(id=len(coco['annotations']) + 1, image_id=image_id, iscrowd=0,
                       category_id=int(label) + 1)
            one['bbox'] = np.round(np.concatenate([low, high - low]).astype(float), 2).tolist()
            one['area'] = one['bbox'][2] * one['bbox'][3]
            if found.mask is not None:
                code = coco_mask.encode(np.asfortranarray(found.mask[i], np.uint8))
                one['area'] = float(coco_mask.area(code))
                one['segmentation'] = dict(size=[height, width], counts=code['counts'].decode())
            coco['annotations'].append(one)
    return coco


def run(args) -> int:
    """Convert, write, check what was written; ``args`` of to_coco.py."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always', UserWarning)
        coco = convert(*(from_labelme if args.format == 'labelme' else from_yolo)(args),
                       args.images)
    for text in sorted({str(one.message) for one in caught if one.category is UserWarning}):
        print(text, file=sys.stderr)
    if not coco['images']:
        raise ConfigError(f'nothing found: no labels in {args.labels} or no images in '
                          f'{args.images}')
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(coco), encoding='utf-8')
    report = check_coco_file(str(args.out), None, str(args.images), headers=0)
    masks = sum('segmentation' in one for one in coco['annotations'])
    classes = tuple(one['name'] for one in coco['categories'])
    print(f"{args.out}: {report['images']} images, {report['annotations']} objects, {masks} of "
          f'them with masks; metainfo=dict(classes={classes!r})')
    for message in report['warnings'] + report['errors']:
        print(message, file=sys.stderr)
    return int(bool(report['errors']))
