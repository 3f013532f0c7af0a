"""Makes a small detection and a small classification data set from real handwritten digits.

The 1,797 images of 8 x 8 pixels inside scikit-learn (``load_digits``; Alpaydin and Kaynak,
"Optical Recognition of Handwritten Digits", UCI 1998) are enlarged, rotated and written in dark
ink on light, textured paper. Nothing is downloaded. Training and validation images are made of
disjoint digits. The result::

    OUT/settings.json                                    what was asked for; written last
    OUT/detection/annotations/instances_{train,val}.json COCO, boxes and masks, 10 classes
    OUT/detection/{train,val}/000000.png                 several digits, partly overlapping
    OUT/classification/{train,val}/<class>/*.png         one digit each

Masks are the visible part of each digit (later digits cover earlier ones). The same settings give
the same files, and a second call with the same settings does nothing.
"""

import argparse
import json
import shutil
import signal
import sys
from pathlib import Path

import cv2
import numpy as np
from pycocotools import mask as coco_mask

from mmext.cli.clear_errors import one_clear_error

FORMAT = 1  # raise when the drawing below changes, so that old data are not taken for new
CLASSES = tuple('0123456789')
SPLITS = ('train', 'val')


def parse_args(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--out', default='data/digits', help='folder to make (%(default)s)')
    parser.add_argument('--seed', type=int, default=0, help='(%(default)s)')
    parser.add_argument(
        '--train', type=int, default=2400, metavar='N', help='training canvases (%(default)s)')
    parser.add_argument(
        '--val', type=int, default=160, metavar='N', help='validation canvases (%(default)s)')
    parser.add_argument(
        '--canvas', type=int, default=128, metavar='PX', help='side of a canvas (%(default)s)')
    parser.add_argument(
        '--digits', type=int, nargs=2, default=(3, 7), metavar=('MIN', 'MAX'),
        help='digits on a canvas (3 7)')
    parser.add_argument(
        '--digit-size', type=int, nargs=2, default=(28, 50), metavar=('MIN', 'MAX'),
        help='height of a digit in pixels (28 50)')
    parser.add_argument(
        '--rotation', type=float, default=15., metavar='DEG', help='largest turn (%(default)s)')
    parser.add_argument(
        '--min-visible', type=float, default=.85, metavar='SHARE',
        help='smallest part of a digit that others may leave visible (%(default)s)')
    parser.add_argument(
        '--cls-size', type=int, default=48, metavar='PX',
        help='side of a classification image (%(default)s)')
    parser.add_argument(
        '--cls-copies', type=int, default=3, metavar='N',
        help='classification images of each training digit (%(default)s)')
    parser.add_argument(
        '--val-share', type=float, default=.2, metavar='SHARE',
        help='share of the digits kept for validation (%(default)s)')
    parser.add_argument(
        '--overwrite', action='store_true', help='replace data made with other settings')
    args = parser.parse_args(argv)
    if args.train < 1 or args.val < 1 or args.cls_copies < 1:
        parser.error('--train, --val and --cls-copies must be at least 1')
    if not 1 <= args.digits[0] <= args.digits[1]:
        parser.error(f'--digits {args.digits}: want 1 <= MIN <= MAX')
    if not 8 <= args.digit_size[0] <= args.digit_size[1]:
        parser.error(f'--digit-size {args.digit_size}: want 8 <= MIN <= MAX')
    if not 0 <= args.rotation <= 180:
        parser.error(f'--rotation {args.rotation}: want 0 to 180 degrees')
    # A turned square of side s needs up to s * sqrt(2).
    if args.canvas < 1.5 * args.digit_size[1]:
        parser.error(f'--canvas {args.canvas} is too small for digits of {args.digit_size[1]} '
                     'pixels: want at least 1.5 times that')
    if args.cls_size < 16:
        parser.error(f'--cls-size {args.cls_size}: want at least 16')
    if not 0 < args.val_share < 1:
        parser.error(f'--val-share {args.val_share}: want between 0 and 1')
    if not 0 < args.min_visible <= 1:
        parser.error(f'--min-visible {args.min_visible}: want above 0, at most 1')
    return args


def split_digits(labels, val_share, seed):
    """Row numbers of the digits for each split, the same share of every class in both."""
    rng = np.random.default_rng(seed)
    val = []
    for label in range(len(CLASSES)):
        rows = rng.permutation(np.flatnonzero(labels == label))
        val.extend(rows[:round(len(rows) * val_share)])
    train = np.setdiff1d(np.arange(len(labels)), val)
    return {'train': train, 'val': np.sort(val)}


def make_paper(rng, size):
    """Light paper with stains, grain and sometimes ruled lines: float (size, size, 3), 0..255."""
    paper = np.full((size, size, 3), rng.uniform(200, 245) + rng.uniform(-10, 10, 3))
    stains = rng.uniform(-22, 22, (rng.integers(3, 9),) * 2)
    paper += cv2.resize(stains, (size, size), interpolation=cv2.INTER_CUBIC)[..., None]
    if rng.random() < .5:
        step = int(rng.integers(8, 20))
        paper[int(rng.integers(step))::step] -= rng.uniform(10, 40)
    return paper + rng.normal(0, 6, (size, size, 1))


def make_glyph(rng, digit, height, rotation):
    """One turned digit: opacity (h, w) in 0..1, cut to the pixels that are ink (>= .5)."""
    side = int(np.ceil(1.5 * height)) + 2
    turn = cv2.getRotationMatrix2D((3.5, 3.5), rng.uniform(-rotation, rotation), height / 8)
    turn[:, 2] += (side - 1) / 2 - 3.5
    big = cv2.warpAffine(digit, turn, (side, side), flags=cv2.INTER_CUBIC)
    opacity = np.clip((big - .12) / .3, 0, 1)
    rows = np.flatnonzero((opacity >= .5).any(1))
    cols = np.flatnonzero((opacity >= .5).any(0))
    return opacity[rows[0]:rows[-1] + 1, cols[0]:cols[-1] + 1]


def write_ink(rng, paper, opacity, top, left):
    """Writes a glyph on the paper, in place, in a dark color of its own."""
    ink = rng.uniform(5, 85) + rng.uniform(-25, 45, 3)
    h, w = opacity.shape
    part = paper[top:top + h, left:left + w]
    part += opacity[..., None] * (ink - part)


def make_canvas(rng, digits, labels, rows, args):
    """One canvas: image uint8 (s, s, 3) and a list of (digit's row, visible mask (s, s) bool)."""
    size = args.canvas
    paper = make_paper(rng, size)
    written = []  # (row, full area, visible mask)
    for _ in range(rng.integers(args.digits[0], args.digits[1] + 1)):
        row = int(rng.choice(rows))
        height = rng.uniform(*args.digit_size)
        opacity = make_glyph(rng, digits[row], height, args.rotation)
        h, w = opacity.shape
        for _ in range(50):
            top, left = (int(rng.integers(size - extent + 1)) for extent in (h, w))
            ink = np.zeros((size, size), bool)
            ink[top:top + h, left:left + w] = opacity >= .5
            if all((seen & ~ink).sum() >= args.min_visible * area for _, area, seen in written):
                break
        else:  # the canvas is full
            continue
        written = [(r, area, seen & ~ink) for r, area, seen in written]
        written.append((row, ink.sum(), ink))
        write_ink(rng, paper, opacity, top, left)
    return to_bytes(paper), [(row, seen) for row, _, seen in written]


def make_single(rng, digit, size, rotation):
    """One digit, about the middle of an image uint8 (size, size, 3)."""
    paper = make_paper(rng, size)
    opacity = make_glyph(rng, digit, rng.uniform(.55, .9) * size, rotation)
    opacity = opacity[:size, :size]
    slack = np.array([size, size]) - opacity.shape
    top, left = (slack * rng.uniform(.1, .9, 2)).astype(int)
    write_ink(rng, paper, opacity, top, left)
    return to_bytes(paper)


def to_bytes(image):
    return np.clip(np.rint(image), 0, 255).astype(np.uint8)


def write_png(path, image):
    if not cv2.imwrite(str(path), image):
        raise OSError(f'cannot write {path}')


class Progress:
    """Prints a line every tenth of the work."""

    def __init__(self, what, total):
        self.what, self.total, self.done, self.shown = what, total, 0, 0

    def step(self):
        self.done += 1
        tenth = 10 * self.done // self.total
        if tenth > self.shown:
            self.shown = tenth
            print(f'{self.what}: {self.done}/{self.total}', flush=True)


def write_detection(out, split, digits, labels, rows, args):
    count = getattr(args, split)
    (out / split).mkdir(parents=True)
    (out / 'annotations').mkdir(exist_ok=True)
    images, annotations = [], []
    progress = Progress(f'detection {split}', count)
    for i in range(count):
        # A generator per image: asking for more images leaves the first ones unchanged.
        rng = np.random.default_rng([args.seed, SPLITS.index(split), 0, i])
        image, objects = make_canvas(rng, digits, labels, rows, args)
        name = f'{i:06d}.png'
        write_png(out / split / name, image)
        images.append({'id': i + 1, 'file_name': name, 'width': args.canvas, 'height': args.canvas})
        for row, seen in objects:
            rle = coco_mask.encode(np.asfortranarray(seen, np.uint8))
            annotations.append({
                'id': len(annotations) + 1,
                'image_id': i + 1,
                'category_id': int(labels[row]) + 1,
                'bbox': [float(x) for x in coco_mask.toBbox(rle)],
                'area': float(coco_mask.area(rle)),
                'segmentation': {'size': rle['size'], 'counts': rle['counts'].decode()},
                'iscrowd': 0,
                'digit': row})  # row of scikit-learn's table
        progress.step()
    coco = {
        'info': {'description': "scikit-learn's handwritten digits", 'version': str(FORMAT)},
        'licenses': [],
        'images': images,
        'annotations': annotations,
        'categories': [
            {'id': i + 1, 'name': name, 'supercategory': 'digit'}
            for i, name in enumerate(CLASSES)]}
    (out / 'annotations' / f'instances_{split}.json').write_text(json.dumps(coco))


def write_classification(out, split, digits, labels, rows, args):
    copies = args.cls_copies if split == 'train' else 1
    for name in CLASSES:
        (out / split / name).mkdir(parents=True)
    progress = Progress(f'classification {split}', len(rows) * copies)
    for row in rows:
        for copy in range(copies):
            rng = np.random.default_rng([args.seed, SPLITS.index(split), 1, row, copy])
            image = make_single(rng, digits[row], args.cls_size, args.rotation)
            write_png(out / split / CLASSES[labels[row]] / f'{row:04d}_{copy}.png', image)
            progress.step()


def read_settings(out):
    """The settings that the folder was made with, or None when this tool did not make it."""
    try:
        settings = json.loads((out / 'settings.json').read_text())
    except (OSError, ValueError):
        return None
    return settings if settings.get('made_by') == 'digits.py' else None


def main(argv=None):
    args = parse_args(argv)
    out = Path(args.out).resolve()
    settings = dict(made_by='digits.py', format=FORMAT, **{
        key: list(value) if isinstance(value, (list, tuple)) else value
        for key, value in vars(args).items() if key not in ('out', 'overwrite')})
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        found = read_settings(out)
        if found == settings:
            print(f'{out} holds these data already, nothing to do')
            return
        if found is None:
            sys.exit(f'{out} exists and was not made by this tool: give another --out')
        if not args.overwrite:
            differ = [key for key in settings if settings[key] != found.get(key)]
            sys.exit(f'{out} was made with other settings ({", ".join(differ)}): '
                     'give --overwrite to replace it, or another --out')

    from sklearn.datasets import load_digits
    table = load_digits()
    digits = (table.images / 16).astype(np.float32)
    labels = table.target
    rows = split_digits(labels, args.val_share, args.seed)

    # Everything is written beside the goal and renamed at the end, so that OUT is whole or absent.
    part = out.with_name(f'.{out.name}.part')
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        for split in SPLITS:
            write_classification(
                part / 'classification', split, digits, labels, rows[split], args)
            write_detection(part / 'detection', split, digits, labels, rows[split], args)
        (part / 'settings.json').write_text(json.dumps(settings, indent=2) + '\n')
        if out.exists():
            shutil.rmtree(out)
        part.rename(out)
    except KeyboardInterrupt:
        sys.exit('interrupted, nothing written')
    finally:
        shutil.rmtree(part, ignore_errors=True)
    print(f'wrote {out}')


if __name__ == '__main__':
    signal.signal(signal.SIGTERM, lambda *_: sys.exit('stopped, nothing written'))
    with one_clear_error():
        main()
