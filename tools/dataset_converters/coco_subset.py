"""Cut a smaller COCO data set out of a large one: by number of images, classes and license.

Layout of COCO (from https://cocodataset.org/#download) as the configs expect it:

    data/coco/annotations/instances_{train,val}2017.json
    data/coco/{train,val}2017/*.jpg

Examples:
    # 1,000 training images, the same every time
    python tools/dataset_converters/coco_subset.py \\
        data/coco/annotations/instances_train2017.json \\
        data/coco/annotations/instances_train1k.json --num-images 1000
    # cats and dogs under licenses that allow changes and commercial use, images copied
    python tools/dataset_converters/coco_subset.py \\
        data/coco/annotations/instances_val2017.json data/pets/annotations/instances_val.json \\
        --classes cat dog --licenses 4 5 7 8 \\
        --image-dir data/coco/val2017 --copy-to data/pets/val

    # an own file into two, by image: a fifth for validation
    python tools/dataset_converters/coco_subset.py all.json train.json --split val.json=0.2

Images without an object of the wanted classes are left out (--keep-empty keeps them; --split
keeps them always). Annotations of images or categories that the file does not list are left out.
"""

import argparse
import json
import random
import shutil
from collections import Counter
from pathlib import Path

from mmext.cli.arguments import add_overwrite
from mmext.cli.clear_errors import one_clear_error
from mmext.cli.outputs import check_outputs
from mmext.cli.paths import below


def parse_args(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('ann_file', type=Path, help='annotation file to cut from')
    parser.add_argument('out', type=Path, help='annotation file to write')
    parser.add_argument('--num-images', type=int, help='how many images, chosen at random')
    parser.add_argument('--classes', nargs='+', metavar='NAME', help='only these classes')
    parser.add_argument(
        '--licenses', nargs='+', type=int, metavar='ID',
        help="only images under these; COCO: 1 BY-NC-SA, 2 BY-NC, 3 BY-NC-ND, 4 BY, 5 BY-SA, "
        '6 BY-ND, 7 no known copyright, 8 US government')
    parser.add_argument(
        '--split', metavar='FILE=SHARE',
        help='write this share of the images to a second file, the others to OUT')
    parser.add_argument('--keep-empty', action='store_true', help='keep images without objects')
    parser.add_argument('--seed', type=int, default=0, help='of the choice of images')
    parser.add_argument('--image-dir', type=Path, help='where the images are')
    parser.add_argument('--copy-to', type=Path, help='copy the chosen images to this folder')
    parser.add_argument(
        '--attribution', type=Path, help='write a table of images, sources and licenses')
    add_overwrite(parser)
    args = parser.parse_args(argv)
    if args.num_images is not None and args.num_images < 1:
        parser.error(f'--num-images {args.num_images} must be at least 1')
    if args.split:
        file, _, share = args.split.rpartition('=')
        try:
            args.split = Path(file), float(share)
        except ValueError:
            parser.error(f'--split {args.split!r} is not FILE=SHARE, as val.json=0.2')
        if not file or not 0 < args.split[1] < 1:
            parser.error(f'--split: the share {share} must lie between 0 and 1')
        if args.copy_to:
            parser.error('--split divides annotations, the images stay where they are; leave '
                         '--copy-to out')
        args.keep_empty = True
    if args.copy_to and not args.image_dir:
        parser.error('--copy-to needs --image-dir')
    return args


def subset(data, num_images=None, classes=None, licenses=None, keep_empty=False, seed=0):
    """A new COCO dict; the order of images, annotations and categories is kept.

    Raises:
        ValueError: for a class or license that the file lacks, or when too few images are left.
    """
    names = [category['name'] for category in data['categories']]
    unknown = sorted(set(classes or []) - set(names))
    if unknown:
        raise ValueError(f'no classes {unknown} in the file; it has {names}')
    categories = [c for c in data['categories'] if classes is None or c['name'] in classes]
    images = data['images']
    if licenses is not None:
        known = {license['id']: license['name'] for license in data.get('licenses', [])}
        unknown = sorted(set(licenses) - set(known))
        if unknown:
            raise ValueError(f'no licenses {unknown} in the file; it has {known}')
        images = [image for image in images if image.get('license') in licenses]
    wanted = {category['id'] for category in categories}
    annotations = [ann for ann in data['annotations'] if ann['category_id'] in wanted]
    if not keep_empty:
        filled = {ann['image_id'] for ann in annotations if not ann.get('iscrowd', 0)}
        images = [image for image in images if image['id'] in filled]
    if num_images is not None:
        if num_images > len(images):
            raise ValueError(f'{num_images} images wanted but only {len(images)} fit')
        ids = sorted(image['id'] for image in images)
        chosen = set(random.Random(seed).sample(ids, num_images))
        images = [image for image in images if image['id'] in chosen]
    if not images:
        raise ValueError('no image fits; loosen --classes or --licenses')
    kept = {image['id'] for image in images}
    return {
        **data,
        'images': images,
        'annotations': [ann for ann in annotations if ann['image_id'] in kept],
        'categories': categories,
    }


def split_images(data, share, seed=0):
    """Two COCO dicts with all annotations of their images, which are divided at random.

    Args:
        data: a COCO dict.
        share: of the images in the second; at least one image is in each.

    Raises:
        ValueError: for a file of less than two images.
    """
    ids = sorted(image['id'] for image in data['images'])
    if len(ids) < 2:
        raise ValueError(f'{len(ids)} image cannot be divided')
    count = min(max(round(share * len(ids)), 1), len(ids) - 1)
    second = set(random.Random(seed).sample(ids, count))
    return [{
        **data,
        'images': [image for image in data['images'] if image['id'] in kept],
        'annotations': [ann for ann in data['annotations'] if ann['image_id'] in kept],
    } for kept in (set(ids) - second, second)]


def write_attribution(data, path):
    licenses = {license['id']: license for license in data.get('licenses', [])}
    with open(path, 'w', encoding='utf-8') as file:
        file.write('file_name\tsource\tlicense\tlicense_url\n')
        for image in data['images']:
            license = licenses.get(image.get('license'), {})
            file.write('\t'.join([
                image['file_name'], image.get('flickr_url') or image.get('coco_url', ''),
                license.get('name', 'unknown'), license.get('url', '')]) + '\n')


def main(argv=None):
    args = parse_args(argv)
    outputs = [args.out, args.split[0] if args.split else None, args.attribution]
    check_outputs(outputs, args.overwrite, [args.ann_file])
    try:
        data = json.loads(args.ann_file.read_text(encoding='utf-8'))
        small = subset(
            data, args.num_images, args.classes, args.licenses, args.keep_empty, args.seed)
        parts = split_images(small, args.split[1], args.seed) if args.split else []
        if args.copy_to:
            names = [image['file_name'] for image in small['images']]
            targets = [below(args.copy_to, name, follow=True) for name in names]
            sources = [below(args.image_dir, name) for name in names]
            missing = [str(source) for source in sources if not source.is_file()]
            if missing:
                raise ValueError(
                    f'{len(missing)} images are not in {args.image_dir}: {missing[:3]}')
            check_outputs(dict.fromkeys(targets), args.overwrite, [args.ann_file, *sources])
    except (OSError, ValueError) as error:
        raise SystemExit(f'error: {args.ann_file}: {error}') from error
    except (KeyError, TypeError, AttributeError) as error:
        raise SystemExit(f'error: {args.ann_file} is no COCO file ({type(error).__name__}: '
                         f'{error}); check_coco.py says where') from error
    if args.copy_to:
        for source, target in zip(sources, targets, strict=True):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    if args.attribution:
        args.attribution.parent.mkdir(parents=True, exist_ok=True)
        write_attribution(small, args.attribution)
    names = {category['id']: category['name'] for category in small['categories']}
    for path, part in zip((args.out, args.split[0]), parts, strict=True) if args.split else [
            (args.out, small)]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(part), encoding='utf-8')
        counts = Counter(names[ann['category_id']] for ann in part['annotations'])
        lacking = [name for name in names.values() if not counts[name]]
        print(f"{path}: {len(part['images'])} images, {len(part['annotations'])} annotations, "
              f"{len(counts)} of {len(names)} classes"
              + (f"; none of {', '.join(lacking[:5])}" if args.split and lacking else ''))
    if args.classes:
        classes = ', '.join(repr(category['name']) for category in small['categories'])
        print(f'in the config: metainfo=dict(classes=({classes},)), num_classes={len(names)}')


if __name__ == '__main__':
    with one_clear_error():
        main()
