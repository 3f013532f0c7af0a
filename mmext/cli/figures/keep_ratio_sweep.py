"""What tools/analysis_tools/keep_ratio_sweep.py draws and computes."""

import copy
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from mmext.analysis.attention import column_mean, retained_mass
from mmext.analysis.drawing import Line, Panel, Point, frontier, line_panels
from mmext.analysis.flop_counter import count_flops
from mmext.analysis.intermediates import analyzed_layers
from mmext.analysis.schedule import best_schedule, columns_within
from mmext.analysis.timing import time_alternating
from mmext.cli.analysis import (
    batches,
    collect,
    dataset_cfg,
    make_dense,
    report,
    subjects,
    write_figure,
)
from mmext.cli.arguments import ratio_word
from mmext.cli.config_check import ConfigError
from mmext.cli.launch import build_runner

GRID = [round(.05 * step, 2) for step in range(1, 21)]
FIDELITY = 'cosine similarity of features to dense'


class Setting(NamedTuple):
    """A backbone that shares its parameters with all others and prunes in its own way."""

    family: str
    label: str
    backbone: nn.Module


def variant(backbone: nn.Module) -> nn.Module:
    """A copy with its own settings and the same parameters."""
    shared = {id(t): t for t in (*backbone.parameters(), *backbone.buffers())}
    return copy.deepcopy(backbone, shared)


def settings_of(args, backbone: nn.Module, searched: dict[str, list]) -> list[Setting]:
    make_dense(backbone)
    out = [Setting('dense', 'dense', variant(backbone))]
    for value in args.keep_ratio:
        family = 'uniform ratio' if isinstance(value, float) else 'linear over depth'
        if value is not None:
            out.append(Setting(family, ratio_word(value).replace(',', '→'), variant(backbone)))
            out[-1].backbone.set_keep_ratio(value)
    for label, ratios in searched.items():
        out.append(Setting('searched', label, variant(backbone)))
        out[-1].backbone.set_keep_ratio(ratios)
    for r in args.tome:
        out.append(Setting('token merging', f'r={r}', variant(backbone)))
        out[-1].backbone.set_tome(r)
    return out


# ---------------------------------------------------------------------------------- what it costs


def gflops_of(backbone: nn.Module, image: torch.Tensor) -> float:
    backbone = variant(backbone)
    backbone.set_gather('after')
    return count_flops(backbone, image[:1]).gflops


def search(args, subject, image: torch.Tensor) -> dict:
    """The mass of every prunable layer at the ratios of GRID, and a schedule for every budget."""
    backbone = subject.backbone
    make_dense(backbone)
    args.layers = [i for i in analyzed_layers(backbone, args.layers)
                   if not backbone.blocks[i].attn.query_key_free]
    tokens = []

    def numbers_of(layer):
        tokens.append(layer.tensors['bias'].shape[-1])
        received = column_mean(layer.tensors['attn'])
        return {'mass': retained_mass(received, layer.tensors['bias'], GRID)}

    mass = collect(args, subject, numbers_of, ['attn', 'bias'])['mass'].mean((1, 2))
    dense = gflops_of(backbone, image)
    budgets = args.budget_gflops
    if not budgets:
        reference = variant(backbone)
        reference.set_keep_ratio((.9, .1))
        budgets = [gflops_of(reference, image)]
    schedules = []
    for budget in budgets:
        columns = columns_within(budget, dense, tokens[0], backbone.embed_dim, len(args.layers))
        ratios = best_schedule(mass, GRID, tokens[0], columns)
        whole = [None] * backbone.depth
        for layer, ratio in zip(args.layers, ratios, strict=True):
            whole[layer] = ratio
        kept = mass[np.arange(len(mass)), [GRID.index(ratio) for ratio in ratios]].mean()
        schedules.append({'budget_gflops': budget, 'keep_ratio': whole, 'retained_mass': kept})
    return {'layers': args.layers, 'ratios': GRID, 'mass': mass, 'schedules': schedules}


def write_config(args, found: dict, path: Path) -> None:
    line = (f"model = dict(backbone=dict(keep_ratio={found['keep_ratio']}, keep_ratio_val='same', "
            "tau=None, tau_val='same'))")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'"""Keeps {found["retained_mass"]:.1%} of the attention mass (dense run, mean over '
        f'layers) within {found["budget_gflops"]:.3f} GFLOPs of the backbone."""\n\n'
        f"_base_ = '{Path(args.config).resolve()}'\n\n{line}\n")
    print(f'{path}:\n{line}')


# -------------------------------------------------------------------------------- what it is worth


def evaluator(args, subject):
    """A function backbone -> (metric's name, value) on the config's test data; nan where a detector
    finds nothing at all."""
    cfg = subject.cfg.copy()
    if cfg.get('test_dataloader') is None:
        cfg.test_dataloader, cfg.test_evaluator = cfg.val_dataloader, cfg.val_evaluator
    for part in ('train', 'val'):
        for key in ('dataloader', 'cfg', 'evaluator'):
            cfg.pop(f'{part}_{key}', None)
    for key in ('optim_wrapper', 'param_scheduler', 'auto_scale_lr'):
        cfg.pop(key, None)
    cfg.test_cfg = cfg.get('test_cfg') or {}
    cfg.update(custom_hooks=[], load_from=None, resume=False, work_dir=str(args.out / 'runner'))
    cfg.model.backbone.init_cfg = None
    runner = build_runner(cfg, ('test',))
    runner.model.to(args.device).load_state_dict(subject.model.state_dict())

    def evaluate(backbone):
        runner.model.backbone = backbone
        metrics = runner.test()
        names = [args.metric] if args.metric else [
            name for name in metrics if name.endswith(('accuracy/top1', 'bbox_mAP'))]
        name = (names or list(metrics) or ['box AP'])[0]
        if metrics and name not in metrics:
            raise ConfigError(f'--metric {name}: the evaluator gives {sorted(metrics)}')
        return name, float(metrics.get(name, 'nan'))

    return evaluate


@torch.no_grad()
def fidelity(args, subject, settings: list[Setting]) -> dict[str, float]:
    """label -> mean cosine similarity to the dense model's last features."""
    found = {setting.label: [] for setting in settings}
    for batch in batches(args, subject):
        features = {s.label: s.backbone(batch.inputs)[-1] for s in settings}
        for label, value in features.items():
            channels = -1 if value.dim() == 3 else 1
            similarity = F.cosine_similarity(
                value.double(), features['dense'].double(), dim=channels)
            found[label] += similarity.flatten(1).mean(1).tolist() if value.dim() > 2 \
                else similarity.tolist()
    return {label: float(np.mean(values)) for label, values in found.items()}


def run(args) -> None:
    [subject] = subjects(args)
    if not getattr(subject.backbone, 'with_key_bias', False):
        raise ConfigError(f'{args.config}: keep ratios need a backbone with key bias '
                          '(BiasPrunedViT with key_bias=True)')
    image = next(batches(args, subject, progress=False)).inputs
    found = search(args, subject, image)
    for i, schedule in enumerate(found['schedules']):
        write_config(args, schedule, args.out / f'searched_schedule_{i}.py')
    settings = settings_of(args, subject.backbone, {
        f"≤{s['budget_gflops']:.4g} G": s['keep_ratio'] for s in found['schedules']})

    if args.fidelity or dataset_cfg(subject.cfg) is None:
        metric, values = FIDELITY, fidelity(args, subject, settings)
    else:
        evaluate, values = evaluator(args, subject), {}
        for setting in settings:
            metric, values[setting.label] = evaluate(setting.backbone)
    with torch.no_grad():
        timings = time_alternating(
            {s.label: lambda b=s.backbone: b(image) for s in settings}, args.device,
            warmup=2, repeat=args.repeat)
    points = [{
        'family': s.family, 'label': s.label, 'metric': values[s.label],
        'gflops': gflops_of(s.backbone, image), 'latency_ms': 1e3 * timings[s.label].median,
        'latency_ms_10th_90th': [1e3 * timings[s.label].low, 1e3 * timings[s.label].high],
    } for s in settings]

    size = 'x'.join(map(str, image.shape[-2:]))
    latency = f'latency of the backbone in ms (10th to 90th), batch {len(image)}, {args.device}'
    figure = frontier([Point(p['family'], p['label'], {
        f'GFLOPs of the backbone, {size}': p['gflops'], latency: p['latency_ms'],
    }, p['metric'], {latency: p['latency_ms_10th_90th']}) for p in points],
        metric, f'{subject.label}: other keep ratios, not retrained')
    figures = [write_figure(args, [subject], figure, 'keep_ratio_sweep')]
    figure = line_panels([
        Panel([Line(f'r = {GRID[g]:g}', found['layers'], found['mass'][:, g], color=i)
               for i, g in enumerate(range(1, len(GRID), 4))],
              'Mass on the top-k columns of the key bias', 'share of the attention mass'),
        Panel([Line(f"≤ {s['budget_gflops']:.4g} GFLOPs", found['layers'],
                    [s['keep_ratio'][i] for i in found['layers']], color=i)
               for i, s in enumerate(found['schedules'])], 'Searched schedules', 'keep ratio'),
    ], 'block', subject.label)
    figures.append(write_figure(args, [subject], figure, 'schedule_search'))
    report(args, 'keep_ratio_sweep', [subject],
           {'metric': metric, 'shape': list(image.shape), 'points': points, 'search': found},
           figures)
