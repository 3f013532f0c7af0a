"""What ``mmext predict`` leaves on disk: drawn images and results in COCO's formats."""

import json
import os
from pathlib import Path

import cv2
import numpy as np

from .config_check import ConfigError
from .predictor import Prediction

KEPT_SUFFIXES = {'.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp'}


def name_of(image, root: Path) -> str:
    """Path of an image below ``root``."""
    return Path(os.path.relpath(image, root)).as_posix()


def drawing(out: Path, name: str) -> Path:
    """Where the drawing of an image goes; PNG where its own format cannot be written."""
    keep = Path(name).suffix.lower() in KEPT_SUFFIXES
    return out / 'vis' / (name if keep else f'{name}.png')


def files_of(out: Path, root: Path, images, draw: bool) -> list[Path]:
    """All that :class:`PredictionFiles` may write about these images, whatever the task is."""
    names = [name_of(image, root) for image in images]
    return [*(out / f'{name}.json' for name in ('predictions', 'images', 'panoptic', 'results')),
            *(out / folder / f'{name}.png' for folder in ('semantic', 'panoptic')
              for name in names),
            *(drawing(out, name) for name in names if draw)]


class PredictionFiles:
    """Collects predictions and writes them below one folder, each under its image's own path.

    - ``vis/<path>``: the image with what was found on it
    - detectors: ``results.json``, COCO's results format, and ``images.json``, the images and
      categories that its ids mean, so that ``COCO('images.json').loadRes('results.json')`` works
    - panoptic: ``panoptic.json`` and ``panoptic/<path>.png`` in COCO's panoptic format
    - semantic: ``semantic/<path>.png``, the label of every pixel, 16 bits where 8 do not suffice
    - classifiers: ``predictions.json``, label, class and score by path

    Args:
        out: the folder.
        root: paths are kept relative to this one.
        classes: names by label.
        coco: content of an annotation file whose ids of images and categories are to be used.
        draw: whether to write ``vis``.
        score_thr: objects below it are not drawn; the results hold all.

    Raises:
        ConfigError: the annotation file lacks a class or, in :meth:`add`, an image.
    """

    def __init__(self, out: Path, root: Path, classes, coco: dict | None = None,
                 draw: bool = True, score_thr: float = .3):
        self.out, self.root, self.draw, self.score_thr = out, root, draw, score_thr
        self.classes = tuple(classes or ())
        self.image_ids = None
        self.category_ids = {}
        if coco is not None:
            self.image_ids = {image['file_name']: image['id'] for image in coco['images']}
            self.category_ids = {one['name']: one['id'] for one in coco['categories']}
            missing = [name for name in self.classes if name not in self.category_ids]
            if missing:
                raise ConfigError(f'the annotation file has no category {missing[0]!r}, which the '
                                  f'model knows; its own are {sorted(self.category_ids)[:10]}')
        self.images, self.results, self.panoptic, self.labels = [], [], [], {}
        self.semantic = False

    def add(self, prediction: Prediction) -> dict:
        """Draw one prediction and keep its results; returns it as a dict."""
        name = name_of(prediction.image, self.root)
        image_id = self._image_id(name)
        found = prediction.as_dict()
        height, width = prediction.sample.ori_shape[:2]
        self.images.append(
            {'id': image_id, 'file_name': name, 'width': int(width), 'height': int(height)})
        for one in found.get('objects', ()):
            kept = {key: one[key] for key in ('bbox', 'score', 'segmentation') if key in one}
            self.results.append({
                'image_id': image_id, 'category_id': self._category_id(one['label']), **kept})
        if 'segments' in found:
            self._add_panoptic(name, image_id, found)
        if 'labels' in found:
            self.semantic = True
            small = found['labels'].max() < 256
            write_image(self.out / 'semantic' / f'{name}.png',
                        found['labels'].astype(np.uint8 if small else np.uint16))
        if 'scores' in found:
            self.labels[name] = {key: found[key] for key in ('label', 'class', 'score')}
        if self.draw:
            write_image(drawing(self.out, name), prediction.draw(self.score_thr)[..., ::-1])
        return found

    def _add_panoptic(self, name: str, image_id: int, found: dict) -> None:
        ids = found['segment_ids']
        write_image(self.out / 'panoptic' / f'{name}.png',  # red holds the lowest byte
                    np.stack([ids >> 16, ids >> 8 & 255, ids & 255], axis=-1).astype(np.uint8))
        self.panoptic.append({
            'image_id': image_id, 'file_name': f'{name}.png',
            'segments_info': [
                {'id': one['id'], 'category_id': self._category_id(one['label']),
                 'area': one['area'], 'bbox': one['bbox'], 'iscrowd': 0}
                for one in found['segments']]})

    def _image_id(self, name: str) -> int:
        if self.image_ids is None:
            return len(self.images) + 1
        if name not in self.image_ids:
            raise ConfigError(f'the annotation file has no image {name!r}')
        return self.image_ids[name]

    def _category_id(self, label: int) -> int:
        return self.category_ids[self.classes[label]] if self.category_ids else label + 1

    def close(self) -> list[Path]:
        """Write the JSON files; returns their paths."""
        names = list(self.category_ids) or self.classes
        categories = [{'id': self.category_ids.get(name, i + 1), 'name': name}
                      for i, name in enumerate(names)]
        written = {}
        if self.labels:
            written['predictions.json'] = self.labels
        elif self.images:
            written['images.json'] = {
                'images': self.images, 'categories': categories, 'annotations': []}
            if self.panoptic:
                written['panoptic.json'] = {'images': self.images, 'categories': categories,
                                            'annotations': self.panoptic}
            if not self.semantic:
                written['results.json'] = self.results
        for name, content in written.items():
            self.out.mkdir(parents=True, exist_ok=True)
            (self.out / name).write_text(json.dumps(content))
        return [self.out / name for name in written]


def write_image(path: Path, image: np.ndarray) -> None:
    """Write BGR or gray, making folders; cv2.imwrite alone says nothing when it fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    done, data = cv2.imencode(path.suffix.lower(), image)
    if not done:
        raise OSError(f'{path} cannot be written')
    path.write_bytes(data.tobytes())  # cv2 cannot open paths of every alphabet on every system
