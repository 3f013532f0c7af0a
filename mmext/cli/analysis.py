"""What the analysis tools share: model, images, progress and JSON."""

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import DATASETS, init_default_scope
from mmengine.utils import ProgressBar
from torch import Tensor, nn

import mmext.registry  # noqa: F401  (prepares mmcv, mmdet and mmpretrain for this machine)
from mmext.analysis.drawing import save
from mmext.analysis.intermediates import Layer, analyzed_layers, iterate_layers
from mmext.analysis.timing import environment
from mmext.checkpoints.files import cached, read_state_dict
from mmext.checkpoints.fit import load_into
from mmext.checkpoints.official import own_names
from mmext.checkpoints.safe_reader import forbid_code_in_checkpoints
from mmext.cli.arguments import use_device
from mmext.cli.config_check import ConfigError, check_config
from mmext.cli.launch import build_model, default_shape, load_config
from mmext.cli.outputs import Names, check_outputs
from mmext.datasets.loading import LoadImageFromFile

SUFFIXES = {'.jpg', '.jpeg', '.png', '.bmp', '.webp', '.tif', '.tiff', '.ppm'}
SETTINGS = ('config', 'checkpoint', 'images', 'shape', 'layers', 'heads', 'device')


class Subject(NamedTuple):
    """A model under study; ``notes`` say what a reader of its numbers must know."""

    label: str
    cfg: Config
    model: nn.Module
    pipeline: Compose
    notes: list[str]
    checkpoint: str | None = None

    @property
    def backbone(self) -> nn.Module:
        return self.model.backbone


class Batch(NamedTuple):
    """Names of B images, what the network sees of them (H, W, 3; uint8 RGB), input (B, C, H, W)."""

    names: list[str]
    images: list[np.ndarray]
    inputs: Tensor


# ------------------------------------------------------------------------------------- the model


def subjects(args) -> list[Subject]:
    """The model of the command line and those to compare it with."""
    use_device(args)
    pairs = [(args.config, getattr(args, 'checkpoint', None))]
    for word in getattr(args, 'compare', []):
        config, _, checkpoint = word.partition('=')
        pairs.append((config, checkpoint or None))
    names, label_of = [Path(config).stem for config, _ in pairs], Names()
    labels = [label_of(f'{name} {Path(checkpoint).stem}'
                       if checkpoint and names.count(name) > 1 else name)
              for name, (_, checkpoint) in zip(names, pairs, strict=True)]
    return [open_subject(args, label, config, checkpoint)
            for label, (config, checkpoint) in zip(labels, pairs, strict=True)]


def open_subject(args, label: str, config: str, checkpoint: str | None) -> Subject:
    """Build a model in eval mode, its weights and the pipeline of its images.

    Token merging is switched off: merged tokens have no place in the image.
    """
    forbid_code_in_checkpoints()
    cfg = load_config(config, args.cfg_options, None, 'none')
    init_default_scope(cfg.default_scope)
    check_config(cfg)
    torch.manual_seed(0)
    model = build_model(cfg)
    notes = load_weights(model, checkpoint)
    if any(getattr(model.backbone, 'tome_r', ())):
        model.backbone.set_tome(0)
        notes.append('token merging switched off')
    for note in notes:
        print(f'{label}: {note}', file=sys.stderr)
    return Subject(label, cfg, model.to(args.device).eval(), test_pipeline(cfg, args, model), notes,
                   checkpoint)


def load_weights(model: nn.Module, checkpoint: str | None) -> list[str]:
    """Load a whole model or a backbone; the notes name what keeps its random values."""
    backbone, options = model.backbone, {}
    if checkpoint is None:
        init = getattr(backbone, 'init_cfg', None) or {}
        init = init if isinstance(init, dict) else next(
            (entry for entry in init if entry.get('type') == 'Pretrained'), {})
        checkpoint = init.get('checkpoint')
        options = {key: value for key, value in init.items()
                   if key not in ('type', 'checkpoint', 'map_location')}
        if checkpoint is None or not local_copy(checkpoint).is_file():
            where = f' ({checkpoint} is not here)' if checkpoint else ''
            return [f'random weights{where}: give a checkpoint']
    elif any(key.startswith('backbone.') for key in read_state_dict(checkpoint)):
        fit = load_into(model, read_state_dict(checkpoint))
        if not any(key.startswith('backbone.') for key in fit.differing):
            parts = sorted({key.split('.')[0] for key in (*fit.missing, *fit.reshaped)})
            return [f'{", ".join(parts)} not in the checkpoint, or of another size: random'
                    ] if parts else []
        options = {'prefix': 'backbone.'}  # of another task: what its backbone shares with ours
    report = backbone.load_pretrained(checkpoint, **options)
    new = getattr(report, 'new', [])
    if checkpoint is not None and not options:  # a published file holds its head, too
        state = own_names(read_state_dict(checkpoint), model) or {}
        load_into(model, {key: value for key, value in state.items() if key.startswith('head.')})
    return ['key bias untrained (the checkpoint has none)'] if any(
        'key_bias' in name for name in new) else []


def local_copy(path: str) -> Path:
    if '://' not in path:
        return Path(path)
    return cached(path)


def make_dense(backbone: nn.Module) -> None:
    if hasattr(backbone, 'set_keep_ratio'):
        backbone.set_keep_ratio(None)


# ---------------------------------------------------------------------------------- the images


def dataset_cfg(cfg: Config):
    loader = cfg.get('test_dataloader') or cfg.get('val_dataloader')
    return None if loader is None else loader.dataset


def test_pipeline(cfg: Config, args, model: nn.Module) -> Compose:
    """The config's test transforms after loading, or with --shape one resize before packing."""
    dataset = dataset_cfg(cfg)
    while dataset is not None and 'pipeline' not in dataset and 'dataset' in dataset:
        dataset = dataset.dataset
    pack = 'PackDetInputs' if cfg.default_scope == 'mmdet' else 'PackInputs'
    given = list(dataset.get('pipeline', [])) if dataset is not None else []
    steps = [step for step in given if 'Load' not in str(step['type'])] or [dict(type=pack)]
    if args.shape or not given:
        steps = [Cover(args.shape or default_shape(model, cfg)), steps[-1]]
    return Compose(steps)


class Cover:
    """Resize to cover (H, W), aspect kept, then crop the center."""

    def __init__(self, shape: tuple[int, int]):
        self.shape = shape

    def __call__(self, results: dict) -> dict:
        image, (height, width) = results['img'], self.shape
        scale = max(height / image.shape[0], width / image.shape[1])
        size = [max(width, round(image.shape[1] * scale)),
                max(height, round(image.shape[0] * scale))]
        image = cv2.resize(
            image, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC)
        top, left = (image.shape[0] - height) // 2, (image.shape[1] - width) // 2
        results['img'] = np.ascontiguousarray(image[top:top + height, left:left + width])
        results['img_shape'] = self.shape
        return results


def image_infos(args, cfg: Config) -> list[dict]:
    """Evenly chosen entries with ``img_path``, or ``img`` where the data set holds arrays."""
    if args.images == ['dataset']:
        dataset = dataset_cfg(cfg)
        if dataset is None:
            raise ConfigError('the config has no test or validation data: give --images')
        init_default_scope(cfg.default_scope)
        dataset = DATASETS.build(dataset)
        total, get = len(dataset), dataset.get_data_info
    else:
        paths = []
        for path in map(Path, args.images):
            if not path.exists():
                raise ConfigError(f'--images: {path} does not exist')
            paths += sorted(p for p in path.rglob('*') if p.suffix.lower() in SUFFIXES) \
                if path.is_dir() else [path]
        total, get = len(paths), lambda i: {'img_path': str(paths[i]), 'img_id': i}
    if total == 0:
        raise ConfigError(f'no images in {" ".join(args.images)}; known are {sorted(SUFFIXES)}')
    count = min(total, args.num_images)
    return [get(i) for i in sorted(set(np.linspace(0, total - 1, count).round().astype(int)))]


def image_names(infos: Sequence[dict]) -> list[str]:
    """Of the images in figures and numbers, distinct."""
    name_of = Names()
    return [name_of(info.get('img_path') or f"image_{info.get('sample_idx', number)}")
            for number, info in enumerate(infos)]


def batches(args, subject: Subject, progress: bool = True) -> Iterator[Batch]:
    """The images of the command line, preprocessed; consecutive ones of equal size together."""
    infos = image_infos(args, subject.cfg)
    load = LoadImageFromFile()
    preprocessor = subject.model.data_preprocessor
    converts = getattr(preprocessor, 'to_rgb', False) or getattr(
        preprocessor, '_channel_conversion', False)
    reads_bgr = converts or 'LoadImageFromFile' in str(dataset_cfg(subject.cfg))
    bar = None
    if progress:
        print(f'{subject.label}: {len(infos)} images', file=sys.stderr)
        bar = ProgressBar(len(infos), file=sys.stderr) if sys.stderr.isatty() else None
    waiting = []

    def hand_on() -> Iterator[Batch]:
        names, inputs, samples = zip(*waiting, strict=True)
        waiting.clear()
        data = {'inputs': list(inputs)}
        if subject.cfg.default_scope == 'mmdet':
            data['data_samples'] = list(samples)
        data = preprocessor(data, False)['inputs']
        patch = getattr(subject.backbone, 'patch_size', 1)
        size = [math.ceil(side / patch) * patch for side in data.shape[-2:]]
        yield Batch(list(names), [as_image(x, converts, size) for x in inputs], data)
        if bar is not None:
            bar.update(len(names))

    for name, info in zip(image_names(infos), infos, strict=True):
        if 'img' not in info:
            info = load.transform(dict(info))
            if not reads_bgr:
                info['img'] = info['img'][..., ::-1]
        item = subject.pipeline(info)
        full = len(waiting) == args.batch_size
        if waiting and (full or waiting[-1][1].shape != item['inputs'].shape):
            yield from hand_on()
        waiting.append((name, item['inputs'], item['data_samples']))
    yield from hand_on()
    if bar is not None:
        print(file=sys.stderr)


def as_image(image: Tensor, converts: bool, size: Sequence[int]) -> np.ndarray:
    """Pixels (3, h, w) before normalization -> (H, W, 3) uint8 RGB of whole patches, padding gray.
    """
    image = F.pad(image.float(), (0, size[1] - image.shape[-1], 0, size[0] - image.shape[-2]),
                  value=127.)
    image = image.clamp(0, 255).permute(1, 2, 0).cpu().numpy().astype(np.uint8)
    return image[..., ::-1] if converts else image


def under(layer: Layer, batch: Batch, subject: Subject, image: int) -> np.ndarray:
    """The part of an image that a layer's grid covers: without what was cut off as padding."""
    patch = subject.backbone.patch_size
    return batch.images[layer.first + image][:layer.hw[0] * patch, :layer.hw[1] * patch]


# -------------------------------------------------------------------------------- intermediates


def shown_layers(args, backbone: nn.Module, count: int = 3) -> list[int]:
    """--layers, or ``count`` from first to last: 0, 5, 11 of 12 (our choice; the
    papers say early, middle and late)."""
    layers = analyzed_layers(backbone, args.layers)
    if args.layers is not None or len(layers) <= count:
        return list(layers)
    return [layers[math.floor(i * (len(layers) - 1) / (count - 1))] for i in range(count)]


def chosen_heads(args, num_heads: int, default: Sequence[int] | None = None) -> list[int]:
    heads = args.heads if args.heads is not None else default
    heads = list(range(num_heads)) if heads is None else list(heads)
    wrong = [head for head in heads if not -num_heads <= head < num_heads]
    if wrong:
        raise ConfigError(f'--heads {wrong}: the model has {num_heads} heads')
    return [head % num_heads for head in heads]


def layers_of(subject: Subject, inputs: Tensor, layers: Sequence[int] | None,
              need: Sequence[str]) -> Iterator[Layer]:
    """``iterate_layers`` with a check that the layers give what the tool is about."""
    for layer in iterate_layers(subject.backbone, inputs, layers):
        missing = set(need) - set(layer.tensors)
        if missing:
            raise ConfigError(
                f'{subject.label}: block {layer.index} has no {", ".join(sorted(missing))}, only '
                f'{", ".join(sorted(layer.tensors))}; maps over N x N and biases are those of '
                'softmax attention, memberships and gates those of TSSA and DMSA')
        yield layer


@torch.no_grad()
def collect(args, subject: Subject, function: Callable[[Layer], dict[str, Tensor]],
            need: Sequence[str]) -> dict[str, np.ndarray]:
    """Apply ``function`` to every layer of every image; only its results are kept.

    Returns:
        name -> (layers, images, ...), the function's results having the images first.
    """
    found = {}
    layers = analyzed_layers(subject.backbone, args.layers)
    for batch in batches(args, subject):
        for layer in layers_of(subject, batch.inputs, layers, need):
            for name, value in function(layer).items():
                found.setdefault(name, {}).setdefault(layer.index, []).append(value.cpu().numpy())
    return {name: np.stack([np.concatenate(of_layer[i]) for i in layers])
            for name, of_layer in found.items()}


def mean_and_spread(values: np.ndarray, axes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Mean over ``axes`` and standard deviation over the first of them (the images), nan left out.

    The spread is that of the per-image means, so heads do not widen it.
    """
    kept = np.ma.masked_invalid(values)
    per_image = kept.mean(axes[1:]) if len(axes) > 1 else kept
    return (per_image.mean(axes[0]).filled(np.nan), per_image.std(axes[0]).filled(np.nan))


# --------------------------------------------------------------------------------------- results


def json_path(args, tool: str) -> Path | None:
    if args.json is None:
        return None
    return Path(args.json) if args.json else args.out / f'{tool}.json'


def check_results(args, tool: str, figures: Sequence[str] = (), of_images: Sequence[str] = (),
                  others: Sequence[str] = ()) -> None:
    """Refuse to write over what is there, before any model is built.

    Args:
        tool: its name, that of its JSON.
        figures: names of the figures without their suffix.
        of_images: what stands before the name of an image, for figures of single images.
        others: further files in --out.
    """
    names = []
    if of_images:
        names = image_names(image_infos(args, load_config(
            args.config, args.cfg_options, None, 'none')))
    figures = [*figures, *(f'{kind}_{name}' for name in names for kind in of_images)]
    check_outputs([*(args.out / f'{name}.png' for name in figures),
                   *(args.out / name for name in others), json_path(args, tool)],
                  args.overwrite, [args.config, args.checkpoint, *args.images])


def write_figure(args, subjects: Sequence[Subject], figure: Figure, name: str) -> Path:
    """Save a figure with the notes of its models below it."""
    note = '; '.join(f'{s.label}: {", ".join(s.notes)}' for s in subjects if s.notes)
    path = args.out / f'{name}.png'
    check_outputs([path], args.overwrite)  # models to compare may have further images
    return save(figure, path, note, args.dpi)


def report(args, tool: str, subjects: Sequence[Subject], numbers: dict, figures: Sequence[Path]):
    """Print where the figures are and write the JSON that was asked for."""
    for path in figures:
        print(f'figure: {path}')
    path = json_path(args, tool)
    if path is None:
        return
    result = {
        'tool': tool,
        'settings': {key: getattr(args, key) for key in SETTINGS if hasattr(args, key)},
        'environment': environment(args.device),
        'notes': {subject.label: subject.notes for subject in subjects if subject.notes},
        'figures': [str(figure) for figure in figures],
        **numbers,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(plain(result), indent=1, allow_nan=False) + '\n')
    print(f'numbers: {path}')


def plain(value):
    """Arrays to lists, nan to null, numbers to six digits, for JSON."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic, Tensor)):
        return plain(value.tolist())
    if isinstance(value, float):
        return float(f'{value:.9g}') if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value
