"""Detectors on the images of a data set: how they test on them, and a training step by part.

Images differ in shape, so what padding costs shows only here, and so does what a training step
spends beside the backbone.
"""

import copy
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean, median

import numpy as np
import torch
from mmengine.dataset import pseudo_collate
from mmengine.optim import build_optim_wrapper
from torch import nn

from mmext.analysis import timing
from mmext.cli.benchmark import detect, load_weights, only, variants_of
from mmext.cli.config_check import check_data_paths
from mmext.cli.launch import build_model, load_config
from mmext.compat import cpu

PARTS = ('data', 'backbone', 'neck', 'rpn', 'roi', 'backward', 'optimizer', 'step')


# ---- data ----------------------------------------------------------------------------------------


def test_data(config: str, data_root: str | None = None, split: str = 'test'):
    """The config, and its data set of a split; ``data_root`` replaces the config's folder.

    Raises:
        ConfigError: the data are not there.
    """
    from mmdet.registry import DATASETS
    cfg = load_config(config, {'data_root': data_root} if data_root else None, None, 'none')
    check_data_paths(cfg, (split,))
    return cfg, DATASETS.build(cfg[f'{split}_dataloader'].dataset)


def spread_by_shape(dataset, number: int | None) -> list[int]:
    """Indices of ``number`` images (None: all), evenly over all of them sorted by width / height.
    """
    infos = [dataset.get_data_info(i) for i in range(len(dataset))]
    order = sorted(range(len(infos)), key=lambda i: infos[i]['width'] / infos[i]['height'])
    number = min(number or len(order), len(order))
    return [order[(2 * k + 1) * len(order) // (2 * number)] for k in range(number)]


# ---- measuring -----------------------------------------------------------------------------------


class PartTimes:
    """Seconds spent in some methods of objects, while what they belong to runs as a whole."""

    def __init__(self, device, **parts: tuple[object, str]):
        self.device = device
        self.seconds = {}
        for name, (owner, method) in parts.items():
            setattr(owner, method, self.timed(name, getattr(owner, method)))

    def timed(self, name: str, function: Callable) -> Callable:
        def call(*args, **kwargs):
            timing.synchronise(self.device)
            start = time.perf_counter()
            result = function(*args, **kwargs)
            timing.synchronise(self.device)
            self.seconds[name] = self.seconds.get(name, 0) + time.perf_counter() - start
            return result
        return call

    def take(self) -> dict[str, float]:
        taken, self.seconds = self.seconds, {}
        return taken


def measure_rounds(candidates: dict[str, Callable], items: list, warmup: int, repeat: int,
                   progress) -> dict[str, dict[str, list[list[float]]]]:
    """Every candidate on every item, in turn, after ``warmup`` items.

    Args:
        candidates: name -> callable of an item that returns seconds by part.

    Returns:
        name -> part -> rounds x items, in seconds.
    """
    for item in items[:warmup]:
        for run in candidates.values():
            run(item)
        progress.update()
    found = {name: {} for name in candidates}
    for turn in range(repeat):
        for item in items:
            for name, run in candidates.items():
                for part, seconds in run(item).items():
                    rounds = found[name].setdefault(part, [])
                    if len(rounds) == turn:
                        rounds.append([])
                    rounds[turn].append(seconds)
            progress.update()
    return found


def part_cell(rounds: list[list[float]], baseline: list[list[float]]) -> dict[str, float]:
    """One part of one candidate: ms is the mean over the items of their median over the rounds,
    p10 and p90 are over the rounds' means; speedup_p10 and speedup_p90 over the items."""
    items = [median(seconds) for seconds in zip(*rounds, strict=True)]
    base = [median(seconds) for seconds in zip(*baseline, strict=True)]
    noise = timing.summarize([mean(turn) for turn in rounds])
    ratios = timing.summarize([b / i for b, i in zip(base, items, strict=True)])
    return {
        'ms': 1e3 * mean(items), 'ms_p10': 1e3 * noise.low, 'ms_p90': 1e3 * noise.high,
        'ms_mean': 1e3 * noise.mean, 'ms_std': 1e3 * noise.std,
        'speedup': mean(base) / mean(items),
        'speedup_p10': ratios.low, 'speedup_p90': ratios.high}


def rows_of(found: dict) -> dict:
    first = next(iter(found.values()))
    return {name: {part: part_cell(rounds, first[part]) for part, rounds in parts.items()}
            for name, parts in found.items()}


def peak_mib(run: Callable, items: list, device) -> float:
    """The larger peak of the first and the last item, the narrowest and the widest image."""
    return max(timing.peak_bytes(partial(run, item), device)
               for item in (items[0], items[-1])) / 2**20


# ---- test ----------------------------------------------------------------------------------------


def images_table(args, dtype: str, progress) -> dict:
    """Every config of --config on the same images, each padded as its data preprocessor does.

    Without --checkpoint the regions are fixed, 1,000 proposals and 100 masks spread over the image:
    random weights find nothing.
    """
    _, data = test_data(args.config[0], args.data_root)
    items = [pseudo_collate([data[i]]) for i in spread_by_shape(data, args.number)]
    candidates, canvas, models = {}, {}, {}
    for config in args.config:
        cfg = load_config(config, None, None, 'none')
        model = build_model(cfg)
        if args.checkpoint:
            load_weights(model, args.checkpoint)
        name = Path(config).stem
        models[name] = model.to(args.device).eval()
        times = PartTimes(args.device, backbone=(model.backbone, 'forward'))
        canvas[name] = []
        candidates[name] = test_pass(model, times, bool(args.checkpoint), canvas[name])
    rows = rows_of(measure_rounds(candidates, items, args.warmup, args.repeat, progress))
    for name, row in rows.items():
        row['detector']['megapixels'] = mean(canvas[name]) / 1e6
        if not args.no_memory:
            row['detector']['peak_mib'] = peak_mib(candidates[name], items, args.device)
    return {'batch': 1, 'extent': len(items), 'dtype': dtype, 'rows': rows}


def test_pass(model: nn.Module, times: PartTimes, whole: bool, canvas: list[int]) -> Callable:
    """Callable of collated data -> seconds of the detector, preprocessing included, and backbone.
    """
    def predict(data):
        data = model.data_preprocessor(data, False)
        inputs, samples = data['inputs'], data['data_samples']
        canvas.append(inputs.shape[-2] * inputs.shape[-1])
        if whole:
            return model.predict(inputs, samples, rescale=True)
        return detect(model, inputs, samples=samples)

    timed = times.timed('detector', predict)

    def run(item):
        with torch.inference_mode():
            timed(copy.deepcopy(item))
        return times.take()

    return run


# ---- training ------------------------------------------------------------------------------------


def training_table(args, dtype: str, progress) -> dict:
    """Whole training steps of a detector, by part: dense, and pruned by masking and by gathering.

    The images come from the config's training pipeline, the same ones for every candidate; with
    activation checkpointing the second forward of the blocks is part of 'backward'.
    """
    cfg, data = test_data(args.config[0], args.data_root, 'train')
    items = []
    for index in spread_by_shape(data, args.number):
        random.seed(index), np.random.seed(index), torch.manual_seed(index)
        start = time.perf_counter()
        items.append((pseudo_collate([data[index]]), time.perf_counter() - start))
    candidates = {}
    for name, options in only(args, training_variants(args, cfg)).items():
        torch.manual_seed(0)
        options = {f'model.backbone.{key}': value for key, value in options.items()}
        cfg = load_config(args.config[0], options, None, 'none')
        cfg.model.backbone.init_cfg = None
        cpu.adapt_config(cfg)
        model = build_model(cfg)
        model.init_weights()
        if args.checkpoint:
            load_weights(model, args.checkpoint)
        candidates[name] = training_pass(model.to(args.device).train(), cfg, args.device)
    rows = rows_of(measure_rounds(candidates, items, args.warmup, args.repeat, progress))
    if not args.no_memory:
        for name, row in rows.items():
            row['step']['peak_mib'] = peak_mib(candidates[name], items, args.device)
    return {'batch': 1, 'extent': len(items), 'dtype': dtype, 'rows': rows}


def training_variants(args, cfg) -> dict[str, dict]:
    """Options of the backbone, by name: those of ``variants_of``, pruned in both ways."""
    found = {}
    for name, options in variants_of(cfg, args).items():
        if options.get('keep_ratio') is None:
            found[name] = options
        else:
            found |= {f'{name} {mode}': options | {'train_mode': mode}
                      for mode in ('mask', 'gather')}
    return found


def training_pass(model: nn.Module, cfg, device) -> Callable:
    """Callable of (collated data, seconds it took to load) -> seconds by part of a step."""
    optimizer = build_optim_wrapper(model, cfg.optim_wrapper)
    parts = dict(backbone=(model.backbone, 'forward'), backward=(optimizer, 'backward'),
                 optimizer=(optimizer, 'step'))
    for name, module in (('neck', 'neck'), ('rpn', 'rpn_head'), ('roi', 'roi_head')):
        if getattr(model, module, None) is not None:
            method = {'neck': 'forward', 'rpn': 'loss_and_predict', 'roi': 'loss'}[name]
            parts[name] = (getattr(model, module), method)
    times = PartTimes(device, **parts)

    def step(data):
        with optimizer.optim_context(model):
            data = model.data_preprocessor(data, True)
            loss, _ = model.parse_losses(model(**data, mode='loss'))
        optimizer.update_params(loss)

    timed = times.timed('step', step)

    def run(item):
        data, loading = item
        timed(copy.deepcopy(data))
        taken = times.take()
        return {'data': loading} | {name: taken[name] for name in PARTS[1:] if name in taken}

    return run


# ---- print ---------------------------------------------------------------------------------------


def print_parts(args, table: dict) -> None:
    """One line a part and candidate, since there are few candidates with long names."""
    what = {'images': 'test', 'training': 'training step'}[args.level]
    print(f"\n{what} on {table['extent']} images, batch 1, {table['dtype']}")
    width = max(map(len, table['rows'])) + 2
    print(f"{'':<11}{'':<{width}}{'mean ms':>10}{'rounds, p10 - p90':>22}{'x':>7}"
          f"{'x of images, p10 - p90':>26}{'peak MiB':>10}")
    for part in next(iter(table['rows'].values())):
        for name, row in table['rows'].items():
            if part not in row:
                continue
            cell = row[part]
            spread = f"{cell['ms_p10']:.1f} - {cell['ms_p90']:.1f}"
            ratios = f"{cell['speedup_p10']:.2f} - {cell['speedup_p90']:.2f}"
            peak = f"{cell['peak_mib']:.1f}" if 'peak_mib' in cell else '-'
            print(f"{part:<11}{name:<{width}}{cell['ms']:10.1f}{spread:>22}{cell['speedup']:7.2f}"
                  f"{ratios:>26}{peak:>10}")
    for name, row in table['rows'].items():
        pixels = row.get('detector', {}).get('megapixels')
        if pixels:
            print(f'mean canvas of {name}: {pixels:.2f} megapixels')
