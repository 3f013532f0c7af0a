"""Every field of a COCO file, held against what mmdet's CocoDataset and pycocotools need of it.

=============  ==================================================  ===============================
field          must be                                             what happens otherwise
=============  ==================================================  ===============================
images
  id           integer, once                                       annotations of one image only
  file_name    text, relative, below the image folder              another file is read
  height,      positive integers; those of the file                masks are drawn at another size
  width                                                            or shifted, boxes are off
categories
  id           integer, once                                       classes are merged
  name         text, once                                          labels are shifted
annotations
  id           positive integer, once                              a match with 0 is a false
                                                                   positive in pycocotools
  image_id,    the id of a listed image, of a listed category      dropped without a word
  category_id
  bbox         4 finite numbers x, y, width, height; no negative   NaN losses, IoU 0, AP can not
               width, no point further out than the image is wide  reach 1
  area         0 < area <= 1e10 where the box has an extent        dropped, or left out of every
                                                                   area range of the evaluation
  iscrowd      0 or 1; may be absent where nothing is evaluated    KeyError at the first validation
  segmentation polygons: lists of 6, 8, ... finite numbers that    the object is ignored, part of
               enclose a pixel of the image; or a run-length code  it is lost, pycocotools reads 4
               of the image's size whose runs sum up to it; every  numbers as a box, KeyError:
               object has one where masks are used                 'mask', unwritten memory
=============  ==================================================  ===============================

A schema library was weighed: jsonschema and pydantic visit every number in Python or build an
object for each, msgspec stops at the first fault and names no annotation, and none of them sees
references, sizes or runs, which are most of the table. numpy checks a column at once instead.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import numpy as np
from pycocotools import mask as coco_mask

from .paths import outside

SHOWN = 20  # faults of a file that are printed in full
STRAY = 1e-3  # share of objects that can be never found without being an error: slips of the pen
LARGEST = 2**53  # beyond, ids are no longer exact in pycocotools' tables of float64
CHUNK = 50_000  # annotations whose polygons are looked at at once: bounds the memory


class Faults:
    """Collects faults by kind; ``lines`` gives the first of each kind and counts the others."""

    def __init__(self):
        self.counts, self.examples = Counter(), {}

    def add(self, kind: str, indices: Iterable[int], line: Callable[[int], str]) -> None:
        indices = list(indices)
        if indices:
            self.counts[kind] += len(indices)
            kept = self.examples.setdefault(kind, [])
            kept.extend(line(int(i)) for i in indices[:SHOWN - len(kept)])

    def lines(self) -> list[str]:
        shown, left = [], dict(self.counts)
        for rank in range(SHOWN):  # the first of every kind, then the second of every kind, ...
            for kind, examples in self.examples.items():
                if rank < len(examples) and len(shown) < SHOWN:
                    shown.append((kind, examples[rank]))
                    left[kind] -= 1
        order = list(self.examples)
        lines = [line for kind, line in sorted(shown, key=lambda pair: order.index(pair[0]))]
        left = [f'{count} x {kind}' for kind, count in left.items() if count]
        return lines + ([f'and more: {", ".join(left)}'] if left else [])


def column(entries: Sequence[dict], key: str) -> list:
    """The values of a field; None where it is absent (which no field may be)."""
    return [entry.get(key) for entry in entries]


def numbers(values: Sequence) -> np.ndarray:
    """Float64 of a list; NaN for what is no finite number: text, null, booleans, lists, 1e999."""
    if not set(map(type, values)) <= {int, float}:
        values = [v if type(v) in (int, float) else np.nan for v in values]
    try:
        array = np.array(values, dtype=np.float64)
    except OverflowError:  # an integer of hundreds of digits
        array = np.array([v if abs(v) < LARGEST else np.nan for v in values], dtype=np.float64)
    array[~np.isfinite(array)] = np.nan
    return array


def integers(values: Sequence) -> tuple[np.ndarray, np.ndarray]:
    """Int64 of a list (-LARGEST for what is no integer) and which are: 1.0, True, '1' are not."""
    if set(map(type, values)) <= {int}:
        try:
            array = np.array(values, dtype=np.int64)
        except OverflowError:
            array = None
        if array is not None and (np.abs(array) < LARGEST).all():
            return array, np.ones(len(array), bool)
    good = np.array([type(v) is int and abs(v) < LARGEST for v in values], bool)
    return np.array([v if ok else -LARGEST for v, ok in zip(values, good, strict=True)],
                    dtype=np.int64), good


def repeated(values: np.ndarray, good: np.ndarray) -> np.ndarray:
    """Indices of good values that occurred before."""
    first = np.zeros(len(values), bool)
    first[np.unique(values, return_index=True)[1]] = True
    return np.flatnonzero(~first & good)


def show(value) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + '...'


def check_fields(
    data: dict,
    masks: bool | None,
    evaluated: bool,
    ground_truth: bool = True,
    classes: Sequence[str] | None = None,
    polygons_only: bool = False,
) -> tuple[Faults, Faults, dict[str, np.ndarray]]:
    """Checks a parsed COCO file (a dict with the three lists) by the table above.

    Args:
        data: the file's content.
        masks: True where instance masks are used, False where they are not looked at, None to
            check those that are there.
        evaluated: whether the file is evaluated against, which pycocotools is strict about.
        ground_truth: whether the annotations are used at all.
        classes: the classes that are used; None for all.
        polygons_only: mmdet's ``LoadAnnotations(poly2mask=False)``, which can not read RLE.

    Returns:
        faults, warnings, and columns of the annotations in the order of the file: ``image`` and
        ``category`` (index of the image and the category, -1 for none), ``crowd``, ``ignore``,
        ``dropped`` (what mmdet leaves out, bool), ``has_mask``.
    """
    faults, warnings = Faults(), Faults()
    images, categories = data['images'], data['categories']
    for name in ('images', 'categories', 'annotations'):
        strangers = [i for i, one in enumerate(data[name]) if type(one) is not dict]
        faults.add(f'entry of {name!r} that is no object', strangers, lambda i, name=name: (
            f'{name}[{i}] is {show(data[name][i])}, no object with fields'))
    if faults.counts:
        return faults, warnings, {}
    sizes, image_ids = check_images(images, faults, warnings)
    category_ids = check_categories(categories, faults)
    anns = data['annotations'] if ground_truth else []
    columns = check_annotations(
        anns, image_ids, category_ids, sizes, evaluated, faults, warnings)
    used = np.ones(len(categories), bool) if classes is None else np.array(
        [type(one.get('name')) is str and one['name'] in classes for one in categories], bool)
    columns['used'] = (columns['category'] >= 0) & np.append(used, False)[columns['category']]
    columns['dropped'] |= ~columns['used'] | (columns['image'] < 0)
    if masks is not False:
        check_masks(anns, sizes, columns, masks, evaluated, polygons_only, faults, warnings)
    return faults, warnings, columns


def check_images(images: list[dict], faults: Faults, warnings: Faults):
    """Checks the images; returns their sizes (N, 2) as height, width (-1: unknown) and ids."""
    ids, good = integers(column(images, 'id'))
    faults.add('image id', np.flatnonzero(~good), lambda i: (
        f'images[{i}]: id {show(images[i].get("id"))} is no integer; number the images'))
    faults.add('image id that occurs twice', repeated(ids, good), lambda i: (
        f'image {ids[i]}: the id occurs twice (images[{i}]); images share one id, so one of them '
        'has the annotations of both; give every image its own'))
    names = column(images, 'file_name')
    text = [type(name) is str and bool(name) for name in names]
    faults.add('file_name', [i for i, ok in enumerate(text) if not ok], lambda i: (
        f'image {images[i].get("id")}: file_name {show(names[i])} is no text'))
    faults.add('file_name outside of the image folder', [
        i for i, ok in enumerate(text) if ok and outside(names[i])], lambda i: (
            f'image {images[i].get("id")}: file_name {show(names[i])} leaves the image folder; '
            'write it relative to data_prefix.img'))
    seen = Counter(name for name, ok in zip(names, text, strict=True) if ok)
    warnings.add('file_name that occurs twice', [
        i for i, ok in enumerate(text) if ok and seen[names[i]] > 1], lambda i: (
            f'image {images[i].get("id")}: file_name {names[i]!r} occurs more than once'))
    sizes = np.full((len(images), 2), -1, np.int64)
    for axis, key in enumerate(('height', 'width')):
        values, good = integers(column(images, key))
        good &= (values > 0) & (values < 2**31)
        sizes[good, axis] = values[good]
        faults.add(f'image {key}', np.flatnonzero(~good), lambda i, key=key: (
            f'image {images[i].get("id")}: {key} {show(images[i].get(key))} is no positive '
            'integer; write the size of the image file'))
    sizes[(sizes < 0).any(1)] = -1
    return sizes, ids


def check_categories(categories: list[dict], faults: Faults) -> np.ndarray:
    """Checks the categories; returns their ids."""
    ids, good = integers(column(categories, 'id'))
    names = column(categories, 'name')
    faults.add('category id', np.flatnonzero(~good), lambda i: (
        f'categories[{i}] ({show(names[i])}): id {show(categories[i].get("id"))} is no integer'))
    faults.add('category id that occurs twice', repeated(ids, good), lambda i: (
        f'category {show(names[i])}: its id {ids[i]} is that of another category, too; give '
        'every category its own'))
    text = [type(name) is str and bool(name) for name in names]
    faults.add('category name', [i for i, ok in enumerate(text) if not ok], lambda i: (
        f'category {categories[i].get("id")}: name {show(names[i])} is no text'))
    first = {}
    for i, name in enumerate(names):
        if text[i]:
            first.setdefault(name, i)
    faults.add('category name that occurs twice', [
        i for i, ok in enumerate(text) if ok and first[names[i]] != i], lambda i: (
            f'category {categories[i].get("id")}: categories share one name, {names[i]!r}; merge '
            'them or rename one'))
    return ids


def positions(keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Index of each value in ``keys``; -1 for none."""
    if not len(keys):
        return np.full(len(values), -1)
    order = np.argsort(keys, kind='stable')
    at = np.minimum(np.searchsorted(keys, values, sorter=order), len(keys) - 1)
    found = order[at]
    return np.where((keys[found] == values) & (values > -LARGEST), found, -1)


def check_annotations(anns, image_ids, category_ids, sizes, evaluated, faults, warnings) -> dict:
    """Checks everything but the masks; returns the columns of ``check_fields``."""

    def line(text):
        return lambda i: f'annotation {show(anns[i].get("id"))}: {text(i)}'

    def value(i, key):
        return f'{key} {show(anns[i][key])}' if key in anns[i] else f'{key} is absent:'

    ids, good = integers(column(anns, 'id'))
    faults.add('annotation id', np.flatnonzero(~(good & (ids > 0))), lambda i: (
        f'annotations[{i}]: {value(i, "id")} must be a positive integer (pycocotools counts a '
        'match with 0 as none); number the annotations from 1'))
    faults.add('annotation id that occurs twice', repeated(ids, good), line(lambda i: (
        f'the id occurs twice (annotations[{i}]); annotations share one id, so one replaces the '
        'other; give every annotation its own')))
    found = {}
    for key, known, what in (('image_id', image_ids, 'image'),
                             ('category_id', category_ids, 'category')):
        values, good = integers(column(anns, key))
        found[what] = positions(known, values)
        faults.add(key, np.flatnonzero(found[what] < 0), line(lambda i, key=key, what=what: (
            f'{value(i, key)} belongs to no listed {what}; mend it or take the annotation out '
            '(coco_subset.py --keep-empty writes a file without)')))

    boxes = column(anns, 'bbox')
    shaped = np.array([type(box) is list and len(box) == 4 for box in boxes], bool)
    xywh = numbers(list(chain.from_iterable(
        box if ok else (None,) * 4 for box, ok in zip(boxes, shaped, strict=True)))).reshape(-1, 4)
    bad = np.isnan(xywh).any(1)
    faults.add('bbox', np.flatnonzero(bad), line(lambda i: (
        f'{value(i, "bbox")} must be 4 finite numbers: x, y, width, height')))
    xywh[bad] = (0, 0, 1, 1)
    x, y, width, height = xywh.T
    faults.add('bbox of negative size', np.flatnonzero((width < 0) | (height < 0)), line(lambda i: (
        f'{value(i, "bbox")} has a negative width or height; it is written x, y, width, height')))
    known = (found['image'] >= 0) & (sizes[found['image']] > 0).all(1) if len(sizes) else (
        np.zeros(len(anns), bool))
    image_size = sizes[found['image']] if len(sizes) else np.ones((len(anns), 2), np.int64)
    rows, columns = image_size.T
    far = known & ((x < -columns) | (y < -rows) | (x + width > 2 * columns)
                   | (y + height > 2 * rows))
    faults.add('bbox far outside', np.flatnonzero(far), line(lambda i: (
        f'{value(i, "bbox")} lies far outside of its image of {columns[i]} x {rows[i]} pixels; '
        'it is x, y, width, height in pixels of the image file')))
    over = known & ~far & ((x < -2) | (y < -2) | (x + width > columns + 2)
                           | (y + height > rows + 2))
    warnings.add('box that reaches beyond its image (written as x, y, x2, y2?)',
                 np.flatnonzero(over), line(lambda i: (
                     f'{value(i, "bbox")} reaches beyond its image of {columns[i]} x {rows[i]} '
                     'pixels; it is x, y, width, height')))
    overlap = ((np.minimum(x + width, columns) > np.maximum(x, 0))
               & (np.minimum(y + height, rows) > np.maximum(y, 0)))

    area = numbers(column(anns, 'area'))
    sized = (width >= 1) & (height >= 1) & ~bad
    faults.add('area', np.flatnonzero(np.isnan(area) | (area < 0) | (area > 1e10)), line(
        lambda i: f'{value(i, "area")} must be a number of square pixels, at most 1e10 (beyond, '
        "pycocotools leaves the object out); write the mask's, or width * height"))
    faults.add('area of 0', np.flatnonzero(sized & (area == 0)), line(lambda i: (
        f'area 0 although its box is {width[i]:g} x {height[i]:g}: mmdet drops the annotation; '
        "write the mask's area, or width * height")))
    warnings.add('area larger than the box', np.flatnonzero(
        sized & (area > 1.05 * width * height + 1)), line(lambda i: (
            f'area {area[i]:g} is larger than its box of {width[i]:g} x {height[i]:g} pixels: '
            'the results by size (mAP_s, _m, _l) sort it wrongly')))

    flags = column(anns, 'iscrowd')
    crowd, good = integers([0 if flag is None else flag for flag in flags])
    absent = np.array([flag is None and (evaluated or 'iscrowd' in ann)
                       for flag, ann in zip(flags, anns, strict=True)], bool)
    faults.add('iscrowd', np.flatnonzero(absent | ~good | ~np.isin(crowd, (0, 1))), line(
        lambda i: f'{value(i, "iscrowd")} must be 0 (one object) or 1 (a group, left out of the '
        'evaluation)'))
    crowd = crowd == 1
    ignore = np.array([bool(ann.get('ignore')) for ann in anns], bool)
    if evaluated:
        warnings.add("annotation with 'ignore', which mmdet drops but pycocotools counts",
                     np.flatnonzero(ignore & ~crowd), line(lambda i: (
                         "'ignore' is set: mmdet leaves it out of training, pycocotools counts "
                         'it; iscrowd=1 leaves it out of both')))
        never_found(~crowd & known & ~bad & ((width == 0) | (height == 0)), ~crowd, 'box of size 0',
                    line(lambda i: f'{value(i, "bbox")} has no extent: no detection can match '
                         'it, AP can not reach 1; take it out'), faults, warnings)
    return dict(found, crowd=crowd, ignore=ignore, xywh=xywh,
                dropped=ignore | ~overlap | ~sized | ~(area > 0))


def never_found(bad, objects, kind, line, faults, warnings) -> None:
    """A fault where many objects can not be found; where hardly any, official files have them."""
    target = faults if bad.sum() > STRAY * objects.sum() else warnings
    target.add(kind, np.flatnonzero(bad), line)


def check_masks(anns, sizes, columns, masks, evaluated, polygons_only, faults, warnings) -> None:
    """Checks the segmentations; adds the column ``has_mask``."""

    def line(text):
        return lambda i: f'annotation {show(anns[i].get("id"))}: {text(i)}'

    segmentations = column(anns, 'segmentation')
    columns['has_mask'] = given = np.array([bool(one) for one in segmentations], bool)
    wanted = columns['used'] & (columns['image'] >= 0) & (
        given if masks is None else evaluated | ~columns['dropped'] | given)
    faults.add('annotation without a segmentation', np.flatnonzero(wanted & ~given), line(
        lambda i: 'has no segmentation, but masks are used; mmdet ends with KeyError: mask. Add '
        'it, take the annotation out, or use a config for boxes'))
    kinds = np.array([{list: 1, dict: 2}.get(type(one), 0) for one in segmentations], int)
    faults.add('segmentation', np.flatnonzero(wanted & given & (kinds == 0)), line(lambda i: (
        f'segmentation {show(segmentations[i])} is neither a list of polygons nor a run-length '
        'code')))
    empty = np.zeros(len(anns), bool)
    apart = np.zeros(len(anns), bool)
    for start in range(0, len(anns), CHUNK):
        part = np.arange(start, min(start + CHUNK, len(anns)))
        usable = wanted[part] & given[part]
        for kind, check in ((1, check_polygons), (2, check_runs)):
            chosen = part[usable & (kinds[part] == kind)]
            if len(chosen):
                check(chosen, segmentations, sizes[columns['image'][chosen]],
                      columns['xywh'][chosen], faults, line, empty, apart)
    if polygons_only:
        faults.add('run-length code', np.flatnonzero(wanted & given & (kinds == 2)
                                                     & ~columns['crowd']), line(lambda i: (
            'segmentation is a run-length code, which LoadAnnotations(poly2mask=False) can not '
            'read: the object would be ignored; set poly2mask=True')))
    kept = ~columns['crowd'] & (evaluated | ~columns['dropped'])
    never_found(empty & kept, kept, 'mask without a pixel', line(lambda i: (
        'its segmentation encloses no pixel of the image: nothing can be learned from it and no '
        'detection can match it; mend it or take it out')), faults, warnings)
    warnings.add('mask that lies elsewhere than its box', np.flatnonzero(apart), line(
        lambda i: 'segmentation and bbox do not lie in the same place'))


def check_polygons(chosen, segmentations, sizes, xywh, faults, line, empty, apart) -> None:
    """Polygons of the annotations ``chosen``, as flat columns."""
    flat = np.array([any(type(p) is not list for p in segmentations[i]) for i in chosen], bool)
    faults.add('segmentation that is no list of polygons', chosen[flat], line(lambda i: (
        f'segmentation {show(segmentations[i])} must be a list of polygons: '
        '[[x1, y1, x2, y2, x3, y3, ...]]')))
    chosen, sizes, xywh = chosen[~flat], sizes[~flat], xywh[~flat]
    if not len(chosen):
        return
    parts = np.array([len(segmentations[i]) for i in chosen])
    owner = np.repeat(np.arange(len(chosen)), parts)  # of each polygon, in `chosen`
    polygons = list(chain.from_iterable(segmentations[i] for i in chosen))
    lengths = np.fromiter(map(len, polygons), np.int64, len(polygons))
    wrong = (lengths < 6) | (lengths % 2 == 1)
    bad = np.zeros(len(chosen), bool)
    bad[owner[wrong]] = True
    short = {int(owner[p]): int(lengths[p]) for p in np.flatnonzero(wrong)[::-1]}
    place = {int(i): at for at, i in enumerate(chosen)} if bad.any() else {}
    faults.add('polygon of less than three points', chosen[bad], line(lambda i: (
        f'a polygon of its segmentation has {short[place[i]]} numbers; it takes an even count, '
        'at least 6: x, y of three points. mmdet ignores it, pycocotools reads 4 as a box')))
    keep = ~bad[owner]
    polygons = [p for p, ok in zip(polygons, keep, strict=True) if ok]
    if not polygons:
        return
    owner, lengths = owner[keep], lengths[keep]
    points = numbers(list(chain.from_iterable(polygons))).reshape(-1, 2)
    starts = np.concatenate([[0], np.cumsum(lengths // 2)[:-1]])
    low = np.minimum.reduceat(points, starts)
    high = np.maximum.reduceat(points, starts)  # NaN stays NaN
    rows, columns = sizes[owner].T
    known = rows > 0
    unread = np.isnan(low).any(1)
    for kind, where, text in (
            ('polygon with something that is no finite number', unread, lambda i: (
                'its segmentation has something else than finite numbers in it')),
            ('polygon far outside', known & (
                (low[:, 0] < -columns) | (low[:, 1] < -rows) | (high[:, 0] > 2 * columns)
                | (high[:, 1] > 2 * rows)), lambda i: (
                'a polygon of its segmentation lies far outside of its image; it is in pixels of '
                'the image file'))):
        bad[:] = False
        bad[owner[where]] = True
        faults.add(kind, chosen[bad], line(text))
    # all of an object: extent, and twice the area of the triangles around its first points
    first = np.repeat(np.arange(len(lengths)), lengths // 2)
    arms = points - points[starts][first]
    turned = np.roll(arms, -1, axis=0)
    cross = np.abs(arms[:, 0] * turned[:, 1] - arms[:, 1] * turned[:, 0])
    ends = np.append(starts[1:], len(points)) - 1
    cross[ends] = 0
    spread = np.bincount(owner, np.add.reduceat(cross, starts), len(chosen))
    left, top = np.full((2, len(chosen)), np.inf)
    right, bottom = np.full((2, len(chosen)), -np.inf)
    np.minimum.at(left, owner, low[:, 0])
    np.minimum.at(top, owner, low[:, 1])
    np.maximum.at(right, owner, high[:, 0])
    np.maximum.at(bottom, owner, high[:, 1])
    sound = ~np.isnan(spread) & np.isin(np.arange(len(chosen)), owner) & (sizes[:, 0] > 0)
    gone = sound & ((spread == 0) | (right < 0) | (bottom < 0) | (left > sizes[:, 1])
                    | (top > sizes[:, 0]))
    thin = sound & ~gone & (
        (spread < 16) | (right - left < 1.5) | (bottom - top < 1.5) | (right < 1) | (bottom < 1)
        | (left > sizes[:, 1] - 1) | (top > sizes[:, 0] - 1))
    for at in np.flatnonzero(thin):  # few: whether a pixel is hit is for pycocotools to say
        size = sizes[at].tolist()
        codes = coco_mask.frPyObjects(segmentations[chosen[at]], *size)
        gone[at] = coco_mask.area(coco_mask.merge(codes)) == 0
    empty[chosen[gone]] = True
    x, y, width, height = xywh.T
    away = (right < x - 2) | (left > x + width + 2) | (bottom < y - 2) | (top > y + height + 2)
    apart[chosen[sound & ~gone & away]] = True


def check_runs(chosen, segmentations, sizes, xywh, faults, line, empty, apart) -> None:
    """Run-length codes of the annotations ``chosen``, compressed (text) or not (a list)."""
    wrong_size, wrong_runs, texts, held = [], {}, [], []
    for i, size in zip(chosen, sizes.tolist(), strict=True):
        code = segmentations[i]
        given = code.get('size')
        if type(given) is not list or given != size or {type(v) for v in given} != {int}:
            wrong_size.append(i)
            continue
        counts = code.get('counts')
        if type(counts) is str and counts.isascii():
            texts.append(counts)
            held.append((i, size[0] * size[1]))
        elif type(counts) is list and {type(v) for v in counts} <= {int}:
            judge_runs(i, sum(counts), min(counts, default=0), sum(counts[1::2]),
                       size[0] * size[1], wrong_runs, empty)
        else:
            wrong_runs[i] = f'counts {show(counts)} are neither text nor a list of integers'
    size_of = dict(zip(chosen.tolist(), sizes.tolist(), strict=True))
    for (i, pixels), runs in zip(held, compressed_runs(texts), strict=True):
        if runs is None:
            wrong_runs[i] = 'counts are no compressed run-length code'
        else:
            judge_runs(i, int(runs.sum()), int(runs.min(initial=0)), int(runs[1::2].sum()), pixels,
                       wrong_runs, empty)
    faults.add('run-length code of another size', wrong_size, line(lambda i: (
        f'the size {show(segmentations[i].get("size"))} of its run-length code is not that of '
        f'its image, [height, width] = {size_of[i]}; encode the mask at the size of the image')))
    faults.add('run-length code whose runs are wrong', sorted(wrong_runs), line(lambda i: (
        f'{wrong_runs[i]}; encode the mask again')))


def judge_runs(i, total, least, ones, pixels, wrong, empty) -> None:
    if least < 0 or total != pixels:
        wrong[i] = (f'the runs of its code sum up to {total} but the image has {pixels} pixels'
                    if least >= 0 else 'its run-length code has a negative run')
    elif not ones:
        empty[i] = True


def compressed_runs(texts: Sequence[str]) -> list[np.ndarray | None]:
    """Run lengths of pycocotools' compressed codes; None where the text is none.

    As rleFrString of pycocotools' maskApi.c: a run is groups of 5 bits, lowest first, each 48 +
    bits + 32 where another follows, sign-extended; from the fourth on runs are differences to
    the run before the last. That function trusts its input, and reads on past its end.
    """
    codes = np.frombuffer(''.join(texts).encode('ascii'), np.uint8).astype(np.int64) - 48
    found, end = [], 0
    for text in texts:
        start, end = end, end + len(text)
        code = codes[start:end]
        last = np.flatnonzero(code & 32 == 0)
        if (code < 0).any() or (code > 63).any() or not len(last) or last[-1] != len(code) - 1:
            found.append(None)  # no code, or one that goes on behind its end
            continue
        first = np.concatenate([[0], last[:-1] + 1])
        place = np.arange(len(code)) - np.repeat(first, last - first + 1)
        if place.max() > 6:
            found.append(None)
            continue
        runs = np.add.reduceat((code & 31) << (5 * place), first)
        runs -= ((code[last] & 16) > 0) * (np.int64(1) << (5 * (place[last] + 1)))
        runs[1::2] = np.cumsum(runs[1::2])
        runs[2::2] = np.cumsum(runs[2::2])
        found.append(runs)
    return found
