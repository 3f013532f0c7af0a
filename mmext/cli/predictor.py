"""``mmext.load``: a trained model that takes images and says what it found.

Underneath are mmdet's ``DetInferencer`` and mmpretrain's ``ImageClassificationInferencer``. What
they cannot do is done here: configs whose base is ``mmext::...``, class names of published
weights, data sets whose pipeline reads annotations, PIL images, damaged files among others.
"""

import importlib
import os
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.device import get_device

import mmext.registry  # noqa: F401  (first: it prepares mmcv, mmdet and mmpretrain)
from mmext.checkpoints.safe_reader import read_checkpoint
from mmext.datasets.loading import LoadImageFromFile

from .checkpoint_check import check_fits, check_readable
from .config_check import ConfigError
from .launch import drop_own_scope, load_config
from .package_files import trained_model

SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp', '.ppm', '.pgm')


def load(config, checkpoint: str | os.PathLike | None = None, *, device: str | None = None,
         options: dict | None = None) -> 'Predictor':
    """A trained detector, segmentor or classifier, ready to predict.

    Args:
        config: path of a config, its name ('mmext::quickstart/digits_cls.py'), a Config, or, with
            no checkpoint, the name of a model that travels with mmext ('digits', 'digits-cls').
        checkpoint: file of weights. None with a path or Config: random weights, for trying out.
        device: 'cpu', 'cuda:0', ...; None: an accelerator where there is one.
        options: values of the config to override, {'model.backbone.keep_ratio': 0.5}.

    Raises:
        ConfigError: the config or the checkpoint cannot be read or do not fit each other.
        ValueError: no model of this name travels with mmext.
    """
    if isinstance(config, Config):
        cfg = deepcopy(config)
        drop_own_scope(cfg._cfg_dict)
        cfg.merge_from_dict(options or {})
    else:
        config = os.fspath(config)
        if checkpoint is None and not config.endswith('.py'):
            config, checkpoint = trained_model(config)
        cfg = load_config(config, options, None, 'none')
    if checkpoint is not None:
        checkpoint = os.fspath(checkpoint)
        if not os.path.isfile(checkpoint):
            raise ConfigError(f'checkpoint {checkpoint!r} does not exist.')
        check_readable(checkpoint)
    return Predictor(cfg, checkpoint, device or get_device())


@dataclass
class Prediction:
    """What a model said of one image.

    Attributes:
        image: what was given: a path, an array or a PIL image.
        sample: mmdet's ``DetDataSample`` or mmpretrain's ``DataSample``, on the CPU; boxes and
            masks in pixels of the original image.
    """

    image: object
    sample: object
    predictor: 'Predictor'

    def as_dict(self) -> dict:
        """The same in plain Python, by what the model gives.

        - classifier: ``label``, ``class``, ``score``, ``scores`` (one a class)
        - detector: ``objects``, a list of ``label``, ``class``, ``score``, ``bbox`` [x, y, w, h]
          and, with masks, ``segmentation`` (COCO's compressed RLE); best score first
        - panoptic: also ``segments``, a list of ``id``, ``label``, ``class``, ``area``, ``bbox``,
          and ``segment_ids``, an int32 array (H, W), 0 where nothing was found
        - semantic: ``classes``, a list of ``label``, ``class``, ``area``, and ``labels``, an
          int32 array (H, W)
        """
        return _as_dict(self.sample, self.predictor)

    def draw(self, score_thr: float = .3) -> np.ndarray:
        """The image with what was found on it: uint8 (H, W, 3), RGB.

        Args:
            score_thr: objects below this score are not drawn.
        """
        return self.predictor.draw(self, score_thr)


class Predictor:
    """A model with its weights, class names and test pipeline; made by :func:`load`.

    Attributes:
        model: the ``nn.Module``, in eval mode; ``model.backbone.set_keep_ratio`` works on it.
        classes: names by label, or None where neither weights nor config know them.
        cfg: the config as used.
    """

    def __init__(self, cfg: Config, checkpoint: str | None, device: str):
        dataset = test_dataset(cfg)
        steps = [step for step in dataset.pipeline
                 if not step['type'].split('.')[-1].startswith('Load')]
        loader = [step for step in dataset.pipeline
                  if step['type'].split('.')[-1] == 'LoadImageFromFile']
        given = {key: value for key, value in (loader[0] if loader else {}).items()
                 if key not in ('type', '_scope_')}
        self.loader = LoadImageFromFile(**given)
        dataset.pipeline = [dict(type='LoadImageFromFile', **given), *steps]
        if cfg.get('data_preprocessor') is not None:
            cfg.model.setdefault('data_preprocessor', cfg.data_preprocessor)
        self.cfg = cfg
        self.classes, palette = class_names(dataset, checkpoint, cfg.default_scope)
        build = _detector if cfg.default_scope == 'mmdet' else _classifier
        self.inferencer, self.visualizer = build(cfg, checkpoint, device, self.classes, palette)
        self.model = self.inferencer.model
        if checkpoint is not None:
            check_fits(checkpoint, self.model)

    def class_name(self, label: int) -> str:
        known = self.classes is not None and label < len(self.classes)
        return self.classes[label] if known else str(label)

    def predict(self, images, batch_size: int = 1) -> list[Prediction]:
        """What the model says of images, in their order.

        Args:
            images: an image, a list of them, or a folder (with its sub-folders). An image is a
                path, a uint8 array (H, W, 3) in BGR as OpenCV reads it, (H, W) in gray, or a PIL
                image in any mode. Pixels as they are; sizing and normalizing are done here.
            batch_size: images computed at once. Images of unlike size are padded to the largest
                of their batch, which changes a detector's results a little.

        Raises:
            ImageError: a file is missing, damaged or no image.
            ValueError: an array of another type or shape, or a folder without images.
        """
        return list(self.stream(images, batch_size))

    def stream(self, images, batch_size: int = 1,
               skip: Callable[[object, Exception], None] | None = None) -> Iterator[Prediction]:
        """As :meth:`predict`, one by one, so that a large folder needs no memory.

        Args:
            skip: called with an image and the error for everything that cannot be used; the
                others go on. None: the first error ends the work.
        """
        if batch_size < 1:
            raise ValueError(f'batch_size {batch_size} must be at least 1')
        waiting = iter(_as_list(images))
        while batch := list(islice(waiting, batch_size)):
            yield from self._batch(batch, skip)

    def _batch(self, images: list, skip) -> Iterator[Prediction]:
        read = []
        for image in images:
            try:
                read.append((image, self.read(image)))
            except Exception as error:
                if skip is None:
                    raise
                skip(image, error)
        if not read:
            return
        try:  # the pipeline; what the model itself raises, out of memory too, ends the work
            data = list(self.inferencer.preprocess(
                [pixels for _, pixels in read], batch_size=len(read)))
        except Exception as error:
            if len(read) > 1:  # sizes that do not stack, or one bad image: each for itself
                for image, _ in read:
                    yield from self._batch([image], skip)
            elif skip is None:
                raise
            else:
                skip(read[0][0], error)
            return
        samples = []
        for part in data:  # mmdet hands the images on
            samples.extend(self.inferencer.forward(part if isinstance(part, dict) else part[1]))
        for (image, _), sample in zip(read, samples, strict=True):
            if isinstance(image, (str, os.PathLike)):
                sample.set_metainfo({'img_path': os.fspath(image)})
            yield Prediction(image, sample.cpu(), self)

    def read(self, image) -> np.ndarray:
        """The pixels of an image as :meth:`predict` takes it: uint8 (H, W, 3), BGR."""
        if isinstance(image, (str, os.PathLike)):
            return self.loader({'img_path': os.fspath(image)})['img']
        if hasattr(image, 'convert'):  # PIL
            from PIL import ImageOps
            rgb = np.asarray(ImageOps.exif_transpose(image).convert('RGB'))
            return np.ascontiguousarray(rgb[..., ::-1])
        if not isinstance(image, np.ndarray):
            raise ValueError(f'an image is a path, a numpy array or a PIL image, not '
                             f'{type(image).__name__}')
        if image.dtype != np.uint8:
            raise ValueError(f'an array of {image.dtype} is no image here: give uint8, 0 to 255, '
                             'not normalized')
        if image.ndim == 2:
            image = image[..., None]
        if image.ndim != 3 or image.shape[-1] not in (1, 3, 4):
            raise ValueError(f'an image array is (H, W) or (H, W, 3), got shape {image.shape}')
        image = np.repeat(image, 3, axis=-1) if image.shape[-1] == 1 else image[..., :3]
        return np.ascontiguousarray(image)

    def draw(self, prediction: Prediction, score_thr: float = .3) -> np.ndarray:
        """See :meth:`Prediction.draw`."""
        image = np.ascontiguousarray(self.read(prediction.image)[..., ::-1].astype(np.uint8))
        # the visualizers write into the data samples they draw
        sample = deepcopy(prediction.sample)
        if self.cfg.default_scope == 'mmdet':
            self.visualizer.add_datasample(
                'image', image, sample, draw_gt=False, pred_score_thr=score_thr)
        else:
            self.visualizer.visualize_cls(image, sample, classes=self.classes, draw_gt=False)
        return self.visualizer.get_image()


def find_images(folder: str | os.PathLike) -> list[str]:
    """Paths of the images in a folder and its sub-folders, sorted; hidden files are left out."""
    found = [path for path in sorted(Path(folder).rglob('*'))
             if path.suffix.lower() in SUFFIXES and path.is_file()
             and not any(part.startswith('.') for part in path.relative_to(folder).parts)]
    if not found:
        raise ValueError(f'no images in {os.fspath(folder)} ({", ".join(SUFFIXES)})')
    return [str(path) for path in found]


def _as_list(images) -> Iterable:
    if isinstance(images, (str, os.PathLike)) and os.path.isdir(images):
        return find_images(images)
    one = isinstance(images, (str, os.PathLike, np.ndarray)) or hasattr(images, 'convert')
    return [images] if one else images


def test_dataset(cfg: Config):
    """The config of the data set whose pipeline images go through; made ``test_dataloader``'s."""
    loader = cfg.get('test_dataloader') or cfg.get('val_dataloader')
    if not loader:
        raise ConfigError('the config has neither test_dataloader nor val_dataloader: their '
                          'pipeline says how an image is sized.')
    cfg.test_dataloader = loader
    dataset = loader.dataset
    while 'pipeline' not in dataset and 'dataset' in dataset:  # RepeatDataset and the like
        dataset = dataset.dataset
    if 'pipeline' not in dataset:
        raise ConfigError(f'test_dataloader.dataset ({dataset.get("type")}) has no pipeline.')
    cfg.test_dataloader.dataset = dataset
    return cfg.test_dataloader.dataset


def class_names(dataset, checkpoint: str | None, scope: str):
    """Names and palette: of the checkpoint, else of the config, else of the data set's class."""
    datasets = importlib.import_module(f'{scope}.registry').DATASETS
    known = dict(getattr(datasets.get(dataset.type), 'METAINFO', None) or {})
    if isinstance(dataset.get('metainfo'), dict):
        known.update(dataset.metainfo)
    if isinstance(dataset.get('classes'), (list, tuple)):
        known['classes'] = dataset.classes
    if checkpoint is not None:
        content = read_checkpoint(checkpoint, mmap=True)
        meta = content.get('meta') or {}
        saved = {key.lower(): value for key, value in (meta.get('dataset_meta') or {}).items()}
        known.update({key: value for key, value in saved.items() if value})
    classes, palette = known.get('classes'), known.get('palette')
    # published files hold lists; mmdet's visualizer wants tuples, one a class at least
    fits = isinstance(palette, (list, tuple)) and len(palette) >= len(classes or palette)
    return (None if classes is None else tuple(map(str, classes)),
            [tuple(color) for color in palette] if fits else 'random')


def _detector(cfg, checkpoint, device, classes, palette):
    from mmdet.apis import DetInferencer
    cfg.visualizer = dict(type='DetLocalVisualizer')
    # with a palette given it builds no data set
    inferencer = DetInferencer(model=cfg, weights=checkpoint, device=device,
                               palette='random', show_progress=False)
    # the visualizer holds the same dict
    inferencer.model.dataset_meta.update(classes=classes or (), palette=palette)
    return inferencer, inferencer.visualizer


def _classifier(cfg, checkpoint, device, classes, palette):
    from mmpretrain import ImageClassificationInferencer, get_model
    from mmpretrain.visualization import UniversalVisualizer
    model = get_model(cfg, checkpoint or False, device)
    return ImageClassificationInferencer(model, classes=classes), UniversalVisualizer()


def _as_dict(sample, predictor: Predictor) -> dict:
    class_name = predictor.class_name
    if 'pred_score' in sample:
        label = int(sample.pred_label)
        scores = sample.pred_score.tolist()
        return {'label': label, 'class': class_name(label), 'score': scores[label],
                'scores': scores}
    found = {}
    if 'pred_instances' in sample:
        found['objects'] = _objects(sample.pred_instances, class_name)
    if 'pred_panoptic_seg' in sample:
        void = predictor.model.panoptic_fusion_head.num_classes
        found.update(_segments(sample.pred_panoptic_seg.sem_seg[0].numpy(), void, class_name))
    if 'pred_sem_seg' in sample:
        labels = sample.pred_sem_seg.sem_seg[0].to(torch.int32).numpy()
        found['classes'] = [
            {'label': int(label), 'class': class_name(int(label)), 'area': int(area)}
            for label, area in zip(*np.unique(labels, return_counts=True), strict=True)]
        found['labels'] = labels
    return found


def _objects(instances, class_name) -> list[dict]:
    from pycocotools import mask as coco_mask
    boxes = getattr(instances.bboxes, 'tensor', instances.bboxes).double()
    boxes = torch.cat([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], dim=1)  # x, y, w, h
    objects = []
    for i, (box, label, score) in enumerate(zip(
            boxes.tolist(), instances.labels.tolist(), instances.scores.tolist(), strict=True)):
        one = {'label': label, 'class': class_name(label), 'score': score, 'bbox': box}
        if 'masks' in instances:
            rle = coco_mask.encode(np.asfortranarray(instances.masks[i].numpy(), np.uint8))
            one['segmentation'] = {'size': rle['size'], 'counts': rle['counts'].decode()}
        objects.append(one)
    return sorted(objects, key=lambda one: -one['score'])


def _segments(ids: np.ndarray, void: int, class_name) -> dict:
    """Of mmdet's map (H, W) of label + 1000 x instance, where label ``void`` is nothing."""
    from mmdet.evaluation import INSTANCE_OFFSET
    segments, segment_ids = [], np.zeros(ids.shape, np.int32)
    for value in np.unique(ids):
        label = int(value % INSTANCE_OFFSET)
        if label == void:
            continue
        inside = ids == value
        rows, columns = np.flatnonzero(inside.any(1)), np.flatnonzero(inside.any(0))
        number = len(segments) + 1
        segment_ids[inside] = number
        segments.append({
            'id': number, 'label': label, 'class': class_name(label), 'area': int(inside.sum()),
            'bbox': [int(columns[0]), int(rows[0]), int(columns[-1] - columns[0]) + 1,
                     int(rows[-1] - rows[0]) + 1]})
    return {'segments': segments, 'segment_ids': segment_ids}
