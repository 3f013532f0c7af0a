"""Leaves the results of a run where people look for them: numbers, curves and images."""

import json
import os
import time
from contextlib import contextmanager
from pathlib import Path

import cv2
import mmengine
import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper

import mmext
from mmext.registry import HOOKS

from .by_class import draw_class_report


@HOOKS.register_module()
class RunArtifactsHook(Hook):
    """Writes into the work_dir, after each validation and at the end of training:

    - ``metrics.json``: state of the run, last and best metrics, every validation so far;
    - ``curves.png``: training loss and validation metrics over the iterations;
    - ``predictions.png``: a contact sheet of validation images with what the model says of them
      (boxes, masks and scores of detectors, segments of panoptic and semantic models, labels of
      classifiers);
    - ``classes.json`` and ``classes.png`` of detectors evaluated by ``mmext.CocoMetric``: average
      precision, precision over recall and confusions of every class.

    Predictions are taken from the validation as it runs, so that no image is computed twice.
    Resuming goes on with the history found in ``metrics.json``. Only the main process acts, and
    a failure to write or draw is a warning, never the end of the training.

    Args:
        num_images: images on the contact sheet, spread evenly over the validation set.
        columns: images in a row of it.
        score_thr: detections below this score are not drawn.
    """

    # after CheckpointHook, so that `last_checkpoint` is the one of this iteration
    priority = 'LOWEST'

    def __init__(self, num_images: int = 12, columns: int = 4, score_thr: float = 0.5):
        if num_images < 1 or columns < 1:
            raise ValueError(f'num_images ({num_images}) and columns ({columns}) must be >= 1')
        self.num_images = num_images
        self.columns = columns
        self.score_thr = score_thr
        self.history = []
        self.seconds_before = 0.
        self.started = time.time()
        self.panels = []
        self.wanted = set()

    def before_train(self, runner) -> None:
        if not is_main_process():
            return
        self.history, self.seconds_before, self.started = [], 0., time.time()
        if runner.iter == 0:
            return
        with warn_on_failure(runner, 'read the history of metrics.json'):
            path = Path(runner.work_dir) / 'metrics.json'
            if path.exists():
                found = json.loads(path.read_text())
                self.history = [e for e in found['history'] if e['iter'] <= runner.iter]
                self.seconds_before = float(found['seconds'])

    def before_val_epoch(self, runner) -> None:
        self.panels = []
        self.wanted = set()
        if is_main_process():
            with warn_on_failure(runner, 'choose images'):
                loader = runner.val_dataloader
                # of a distributed run this process sees only its part
                seen = min(len(loader.dataset), len(loader) * (loader.batch_size or 1))
                self.wanted = set(np.linspace(0, seen - 1, self.num_images).astype(int).tolist())
                self.seen = 0

    def after_val_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        if not self.wanted:
            return
        with warn_on_failure(runner, 'collect images'):
            for i, sample in enumerate(outputs):
                if self.seen + i in self.wanted:
                    if 'pred_panoptic_seg' in sample or 'pred_sem_seg' in sample:
                        panel = segmentation_panel(sample)
                    elif 'pred_instances' in sample:
                        panel = detection_panel(sample, self.score_thr)
                    else:
                        panel = label_panel(sample, data_batch['inputs'][i], runner.model)
                    self.panels.append(panel)
            self.seen += len(outputs)

    def after_val_epoch(self, runner, metrics=None) -> None:
        if not is_main_process():
            return
        numbers = {
            key: float(value) for key, value in (metrics or {}).items()
            if np.isscalar(value) and np.isreal(value) and np.isfinite(value)}
        # runner.iter counts finished iterations here
        self.history = [e for e in self.history if e['iter'] < runner.iter]
        self.history.append({'iter': runner.iter, 'epoch': runner.epoch, **numbers})
        self.write(runner, finished=False)
        with warn_on_failure(runner, 'draw predictions.png'):
            if self.panels:
                classes = getattr(runner.val_dataloader.dataset, 'metainfo', {}).get('classes')
                figure = draw_sheet(self.panels, self.columns, classes)
                save_figure(figure, Path(runner.work_dir) / 'predictions.png')
        self.panels = []
        for metric in getattr(getattr(runner, 'val_evaluator', None), 'metrics', ()):
            if hasattr(metric, 'class_report'):
                with warn_on_failure(runner, 'write classes.json and classes.png'):
                    self.write_classes(metric.class_report(), Path(runner.work_dir))

    @staticmethod
    def write_classes(report: dict, work_dir: Path) -> None:
        if report:  # empty as long as nothing is found
            write_text(work_dir / 'classes.json', json.dumps(report) + '\n')
            metric = next(iter(report))
            save_figure(draw_class_report(report[metric], metric), work_dir / 'classes.png')

    def after_train(self, runner) -> None:
        if is_main_process():
            self.write(runner, finished=True)

    def write(self, runner, finished: bool) -> None:
        work_dir = Path(runner.work_dir)
        with warn_on_failure(runner, 'write metrics.json'):
            last = work_dir / 'last_checkpoint'
            training = runner.iter > 0 or finished
            content = {
                'finished': finished,
                'iter': runner.iter,
                'max_iters': runner.max_iters if training else 0,
                'seconds': round(self.seconds_before + time.time() - self.started, 1),
                'checkpoint': os.path.basename(last.read_text()) if last.exists() else None,
                'metrics': self.history[-1] if self.history else {},
                'best': best_of(self.history),
                'history': self.history,
                'seed': runner.seed,
                'environment': {
                    'mmext': mmext.__version__,
                    'torch': torch.__version__,
                    'device': (torch.cuda.get_device_name() if torch.cuda.is_available()
                               else f'CPU, {torch.get_num_threads()} threads'),
                    'world_size': runner.world_size,
                },
            }
            write_text(work_dir / 'metrics.json', json.dumps(content, indent=2) + '\n')
        with warn_on_failure(runner, 'draw curves.png'):
            losses = {
                name.removeprefix('train/'): buffer.data[0]
                for name, buffer in runner.message_hub.log_scalars.items()
                if name.startswith('train/') and 'loss' in name}
            if losses or self.history:
                save_figure(draw_curves(losses, self.history), work_dir / 'curves.png')


@contextmanager
def warn_on_failure(runner, what: str):
    try:
        yield
    except Exception as error:
        runner.logger.warning(f'RunArtifactsHook could not {what}: {error!r}')


def write_text(path: Path, text: str) -> None:
    """Replaces a file in one step: a reader sees the old or the new one, whole."""
    part = path.with_name(f'.{path.name}.part')
    part.write_text(text)
    part.replace(path)


def save_figure(figure: Figure, path: Path) -> None:
    part = path.with_name(f'.{path.name}.part')
    FigureCanvasAgg(figure).print_figure(part, format='png', dpi=120)
    part.replace(path)


def headline_keys(history: list) -> list:
    """The metrics worth a curve: every mAP over all thresholds, accuracy, PQ, mIoU; else all."""
    keys = dict.fromkeys(k for entry in history for k in entry if k not in ('iter', 'epoch'))
    main = [k for k in keys if k.endswith(('mAP', 'PQ', 'PQ_th', 'PQ_st', 'mIoU'))
            or 'accuracy' in k]
    return main or list(keys)


def best_of(history: list) -> dict:
    """For every headline metric its highest value and the iteration it belongs to."""
    best = {}
    for key in headline_keys(history):
        entry = max((e for e in history if key in e), key=lambda e: e[key])
        best[key] = {'value': entry[key], 'iter': entry['iter']}
    return best


# ----------------------------------------------------------------- what one image has to say


def read_image(path: str) -> np.ndarray:
    content = mmengine.fileio.get(path)
    return cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]


def segmentation_panel(sample) -> dict:
    """The image of a panoptic or semantic data sample, and what each pixel was found to be.

    ``segments`` are (label, mask) pairs; of a panoptic map every instance is one.
    """
    found = sample.get('pred_panoptic_seg', sample.get('pred_sem_seg'))
    ids = found.sem_seg[0].cpu().numpy()
    return {
        'image': read_image(sample.img_path),
        # mmdet's panoptic ids are label + 1,000 x number of the instance
        'segments': [(int(i) % 1000, ids == i) for i in np.unique(ids)],
    }


def detection_panel(sample, score_thr: float) -> dict:
    """The image of a detector's data sample, with the objects found in it.

    Boxes and masks are in pixels of the original image, as mmdet's ``predict`` gives them.
    """
    image = read_image(sample.img_path)
    found = sample.pred_instances
    found = found[found.scores >= score_thr].cpu()
    boxes = getattr(found.bboxes, 'tensor', found.bboxes)
    masks = found.masks if 'masks' in found else [None] * len(boxes)
    return {
        'image': image,
        'objects': [
            {'box': box.tolist(), 'label': int(label), 'score': float(score),
             'mask': None if mask is None else np.asarray(mask, dtype=bool)}
            for box, label, score, mask in zip(
                boxes, found.labels, found.scores, masks, strict=True)],
    }


def label_panel(sample, inputs: torch.Tensor, model) -> dict:
    """The image (3, H, W) that a classifier saw, its answer and the truth."""
    preprocessor = (model.module if is_model_wrapper(model) else model).data_preprocessor
    image = inputs[:3].permute(1, 2, 0).cpu().numpy().clip(0, 255).astype(np.uint8)
    if getattr(preprocessor, 'to_rgb', False):
        image = image[..., ::-1]
    label = int(sample.pred_label.reshape(-1)[0])
    return {
        'image': image,
        'label': label,
        'score': float(sample.pred_score[label]),
        'truth': set(sample.gt_label.reshape(-1).tolist()),
    }


# ------------------------------------------------------------------------------------ drawing


def class_color(label: int) -> tuple:
    """Ten strong colors first, then steps by the golden ratio around the color wheel."""
    if label < 10:
        return colormaps['tab10'](label)[:3]
    return colormaps['hsv'](label * 0.618034 % 1)[:3]


def draw_sheet(panels: list, columns: int, classes=None) -> Figure:
    """Contact sheet of what ``detection_panel`` and the other panel functions return."""
    name = lambda label: str(classes[label] if classes else label)  # noqa: E731
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    cell = max(1.4, 11 / columns)  # inches
    font = 10 if cell > 2 else 7.5
    width = int(cell * 72 / (.62 * font))  # characters in a panel: mean width .62 of their height
    figure = Figure(figsize=(cell * columns, (cell + .3) * rows + .3), layout='constrained')
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes:
        axis.set_axis_off()
    for axis, panel in zip(axes, panels, strict=False):
        if 'objects' in panel:
            draw_objects(axis, panel, name)
        elif 'segments' in panel:
            draw_segments(axis, panel, name, len(classes) if classes else 1000)
        else:
            axis.imshow(panel['image'])
            right = panel['label'] in panel['truth']
            text = f"{cut(name(panel['label']), width - 6)}  {panel['score']:.2f}"
            if not right:
                truth = ', '.join(map(name, sorted(panel['truth'])))
                text += f'\n(is {cut(truth, width - 5)})'
            axis.set_title(text, fontsize=font, color='#1a7f37' if right else '#cf222e')
    what = 'labels, with scores,'
    if 'objects' in panels[0]:
        what = 'classes, boxes and masks, with scores,'
    elif 'segments' in panels[0]:
        what = 'segments'
    figure.suptitle(f'Predicted {what} on validation images', fontsize=11)
    return figure


def cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length - 1] + '…'


def draw_segments(axis, panel: dict, name, num_classes: int) -> None:
    """Every segment in the color of its class, with an edge; those of 1 % and more have a name.

    Labels from ``num_classes`` on are void and stay as the image is.
    """
    image = panel['image'].astype(np.float32) / 255
    height, width = image.shape[:2]
    segments = [(label, mask) for label, mask in panel['segments'] if label < num_classes]
    for label, mask in segments:
        inner = cv2.erode(mask.astype(np.uint8), np.ones((3, 3), np.uint8)).astype(bool)
        image[inner] = .5 * image[inner] + .5 * np.array(class_color(label))
        image[mask & ~inner] = class_color(label)
    axis.imshow(image.clip(0, 1))
    for label, mask in segments:
        if mask.sum() < .01 * height * width:
            continue
        # the pixel deepest inside, so that the name of a ring or of paper lies on it
        depth = cv2.distanceTransform(np.pad(mask, 1).astype(np.uint8), cv2.DIST_L2, 3)
        y, x = np.unravel_index(depth.argmax(), depth.shape)
        axis.text(x - 1, y - 1, name(label), fontsize=7, color='white', clip_on=True,
                  horizontalalignment='center', verticalalignment='center',
                  bbox={'facecolor': class_color(label), 'edgecolor': 'none', 'pad': .8})


def draw_objects(axis, panel: dict, name) -> None:
    image = panel['image'].astype(np.float32) / 255
    objects = sorted(panel['objects'], key=lambda o: o['score'])
    for found in objects:
        if found['mask'] is not None:
            mask = found['mask']
            image[mask] = .4 * image[mask] + .6 * np.array(class_color(found['label']))
    axis.imshow(image.clip(0, 1))
    for found in objects:
        x0, y0, x1, y1 = found['box']
        color = class_color(found['label'])
        # pixel i covers i to i + 1 in box coordinates, i - .5 to i + .5 on the axis
        axis.plot(np.array([x0, x1, x1, x0, x0]) - .5, np.array([y0, y0, y1, y1, y0]) - .5,
                  color=color, linewidth=1.2)
        # a label above the box, inside it where it would leave the image
        inside = y0 < .06 * image.shape[0]
        axis.text(
            max(x0, 0) - .5, y0 - .5, f"{name(found['label'])} {found['score']:.2f}", fontsize=7,
            color='white', verticalalignment='top' if inside else 'bottom', clip_on=True,
            bbox={'facecolor': color, 'edgecolor': 'none', 'pad': .8})
    axis.set_xlim(-.5, image.shape[1] - .5)
    axis.set_ylim(image.shape[0] - .5, -.5)


def draw_curves(losses: dict, history: list) -> Figure:
    """Training losses (one value an iteration, smoothed) and validation metrics, side by side."""
    figure = Figure(figsize=(11, 4.2), layout='constrained')
    left, right = figure.subplots(1, 2, sharex=True)
    for key, values in sorted(losses.items(), key=lambda item: item[0] != 'loss'):
        window = max(1, len(values) // 60)
        smooth = np.convolve(values, np.ones(window) / window, mode='valid')
        steps = np.arange(len(smooth)) + window
        total = key == 'loss'
        if total:
            left.plot(np.arange(len(values)) + 1, values, color='0.8', linewidth=.5)
        left.plot(steps, smooth, label=key, linewidth=2 if total else 1,
                  color='black' if total else None)
    if losses:
        total = np.asarray(losses.get('loss', next(iter(losses.values()))))
        # a few huge values of the first iterations would flatten everything after them
        left.set_ylim(0, 1.05 * np.percentile(total, 98))
        left.legend(fontsize=8)
    left.set_title('Training loss')
    keys = headline_keys(history)
    for key in keys:
        points = [(e['iter'], e[key]) for e in history if key in e]
        right.plot(*np.transpose(points), marker='o', markersize=4,
                   label=f'{key}  (last {points[-1][1]:.3g})')
    if keys:
        right.legend(fontsize=9, loc='lower right')
    right.set_title('Validation')
    for axis in (left, right):
        axis.set_xlabel('iteration')
        axis.grid(alpha=.3)
    return figure
