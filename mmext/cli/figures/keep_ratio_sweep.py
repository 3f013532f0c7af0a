"""What tools/analysis_tools/keep_ratio_sweep.py draws and computes."""

import copy
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from mmext.analysis.attention import column_mean, retained_mass
from mmext.analysis.drawing import Line, Panel, Point, frontier, line_panels
from mmext.analysis.flop_counter import count_flops, drop_values
from mmext.analysis.intermediates import analyzed_layers
from mmext.analysis.schedule import best_schedule, columns_within, threshold_of_ratio
from mmext.analysis.timing import time_alternating
from mmext.cli.analysis import (
    batches,
    check_results,
    collect,
    dataset_cfg,
    make_dense,
    report,
    subjects,
    write_figure,
)
from mmext.cli.arguments import ratio_word
from mmext.cli.checkpoint_check import check_fits
from mmext.cli.config_check import ConfigError
from mmext.cli.launch import build_runner
from mmext.layers import QueryKeyFreeAttention
from mmext.layers.pruning_ratio import PruningRatio
from mmext.ops.column_selection import KeepRule

GRID = [round(.05 * step, 2) for step in range(1, 21)]
FIDELITY = 'cosine similarity of features to dense'


class Setting(NamedTuple):
    """A backbone that shares its parameters with all others of its model and prunes in its own way.
    """

    model: str
    family: str
    label: str
    backbone: nn.Module


def variant(backbone: nn.Module) -> nn.Module:
    """A copy with its own settings and the same parameters."""
    shared = {id(t): t for t in (*backbone.parameters(), *backbone.buffers())}
    return copy.deepcopy(backbone, shared)


def prunes(backbone: nn.Module) -> bool:
    return getattr(backbone, 'with_key_bias', False)


def settings_of(args, subject, searched: dict[str, list], as_trained: nn.Module | None
                ) -> list[Setting]:
    """All settings of one model: what its config says, dense, pruned, merged, and both."""
    backbone = subject.backbone
    make_dense(backbone)
    out = []

    def add(family: str, label: str) -> nn.Module:
        out.append(Setting(subject.label, family, label, variant(backbone)))
        return out[-1].backbone

    add('dense', 'dense')
    if as_trained is not None:
        out.append(Setting(subject.label, 'as configured', 'as configured', as_trained))
    for value in args.keep_ratio if prunes(backbone) else []:
        if value is not None:
            shape = value['shape'] if isinstance(value, dict) else 'linear'
            add('uniform ratio' if isinstance(value, float) else f'{shape} over depth',
                ratio_word(value).replace(',', '→')).set_keep_ratio(value)
    for label, ratios in searched.items():
        add('searched', label).set_keep_ratio(ratios)
    for tau in args.tau if prunes(backbone) else []:
        add('threshold', f'τ={tau:.4g}').set_tau(tau)
    for r in args.tome if hasattr(backbone, 'set_tome') else []:
        add('token merging', f'r={r}').set_tome(r)
    for r in args.tome if prunes(backbone) and args.tome_keep_ratio is not None else []:
        both = add('token merging + pruning', f'r={r}, {ratio_word(args.tome_keep_ratio)}')
        both.set_tome(r)
        both.set_keep_ratio(args.tome_keep_ratio)
    return out


def configured(backbone: nn.Module) -> nn.Module | None:
    """The backbone as its config prunes in validation; None where it is dense."""
    rules = [layer.rule_val for layer in PruningRatio(backbone).layers]
    return variant(backbone) if any(rule != KeepRule() for rule in rules) else None


def thresholds(args, subject) -> list[dict]:
    """For every wished pruning ratio the threshold that drops as much on the images."""
    found = []
    inputs = [batch.inputs for batch in batches(args, subject)] if args.pruning_ratio else []

    @torch.no_grad()
    def measure(tau: float) -> float:
        subject.backbone.set_tau(tau)
        with PruningRatio(subject.backbone) as pruned:
            for images in inputs:
                subject.backbone(images)
        return pruned.ratio

    for wished in args.pruning_ratio:
        tau, ratio = threshold_of_ratio(measure, wished)
        found.append({'wished': wished, 'tau': tau, 'pruning_ratio': ratio})
        print(f'tau = {tau:.5g} drops {ratio:.2%} of the columns, wished {wished:.2%}')
    return found


# ---------------------------------------------------------------------------------- what it costs


def gflops_of(backbone: nn.Module, image: torch.Tensor, shape: tuple[int, int] | None = None
              ) -> float:
    """For the first image, or for one of another shape."""
    image = image[:1]
    if shape is not None:
        image = F.interpolate(image, shape, mode='bilinear')
    if any(rule.tau is not None for rule in
           (layer.rule_val for layer in PruningRatio(backbone).layers)):
        backbone = variant(backbone)  # what a threshold keeps depends on the values
        backbone.set_gather('after')
        return count_flops(backbone, image).gflops
    backbone = copy.deepcopy(backbone)
    if hasattr(backbone, 'set_gather'):
        backbone.set_gather('after')
    with drop_values(backbone):
        return count_flops(backbone, torch.rand(image.shape, device=image.device)).gflops


def search(args, subject, image: torch.Tensor) -> dict:
    """The mass of every prunable layer at the ratios of GRID, and a schedule for every budget."""
    backbone = subject.backbone
    make_dense(backbone)
    args.layers = [i for i in analyzed_layers(backbone, args.layers)
                   if not isinstance(backbone.blocks[i].attn, QueryKeyFreeAttention)]
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
    if subject.checkpoint:  # the head, too: its answers are evaluated
        check_fits(subject.checkpoint, runner.model)
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
def fidelity(args, subject, settings: list[Setting]) -> list[float]:
    """Mean cosine similarity to the dense model's last features, of every setting."""
    found = [[] for _ in settings]
    for batch in batches(args, subject):
        features = [setting.backbone(batch.inputs)[-1].double() for setting in settings]
        dense = features[[setting.family for setting in settings].index('dense')]
        for values, value in zip(found, features, strict=True):
            similarity = F.cosine_similarity(value, dense, dim=-1 if value.dim() == 3 else 1)
            values += similarity.flatten(1).mean(1).tolist() if value.dim() > 2 \
                else similarity.tolist()
    return [float(np.mean(values)) for values in found]


def worth(args, subject, settings: list[Setting]) -> tuple[str, list[float], list[float]]:
    """The metric's name, its value for every setting, and the share of the columns dropped on the
    way (nan without a key bias)."""
    with ExitStack() as stack:
        pruned = [stack.enter_context(PruningRatio(setting.backbone)) for setting in settings]
        if args.fidelity or dataset_cfg(subject.cfg) is None:
            metric, values = FIDELITY, fidelity(args, subject, settings)
        else:
            evaluate = evaluator(args, subject)
            metric, values = zip(*[evaluate(setting.backbone) for setting in settings],
                                 strict=True)
            metric = metric[0]
    return metric, list(values), [counter.ratio for counter in pruned]


def print_table(points: list[dict], metric: str) -> None:
    """Settings down, models across: the matrix of training and testing."""
    models = list(dict.fromkeys(point['model'] for point in points))
    rows = {}
    for point in points:
        name = point['label'] if point['family'] == point['label'] else (
            f"{point['family']} {point['label']}")
        rows.setdefault(name, {})[point['model']] = point
    print(f'\n{metric} (columns dropped in percent)')
    print(f"{'':<36}" + ''.join(f'{model[:26]:>28}' for model in models))
    for name, row in rows.items():
        cells = [f"{row[m]['metric']:.4f} ({100 * row[m]['pruning_ratio']:.2f})" if m in row
                 else '-' for m in models]
        print(f'{name:<36}' + ''.join(f'{cell:>28}' for cell in cells))


def run(args) -> None:
    searched = [] if args.no_search else [
        f'searched_schedule_{i}.py' for i in range(max(1, len(args.budget_gflops)))]
    check_results(args, 'keep_ratio_sweep', ['keep_ratio_sweep', *(
        ['schedule_search'] if searched else [])], others=searched)
    models = subjects(args)
    first = models[0]
    if not any(prunes(subject.backbone) or hasattr(subject.backbone, 'set_tome')
               for subject in models):
        raise ConfigError(f'{args.config}: keep ratios need a backbone with key bias '
                          '(BiasPrunedViT with key_bias=True), token merging a BiasPrunedViT')
    if args.pruning_ratio and not prunes(first.backbone):
        raise ConfigError(f'--pruning-ratio: {args.config} has no key bias')
    as_trained = [configured(subject.backbone) for subject in models]
    images = [next(batches(args, subject, progress=False)).inputs for subject in models]
    layers = args.layers
    found = {'layers': [], 'mass': [], 'schedules': []}
    if prunes(first.backbone) and not args.no_search:
        found = search(args, first, images[0])
    args.layers = layers
    for i, schedule in enumerate(found['schedules']):
        write_config(args, schedule, args.out / f'searched_schedule_{i}.py')
    wished = thresholds(args, first)
    args.tau = [*args.tau, *(entry['tau'] for entry in wished)]
    searched = {f"≤{s['budget_gflops']:.4g} G": s['keep_ratio'] for s in found['schedules']}

    points, metric = [], None
    for subject, image, trained in zip(models, images, as_trained, strict=True):
        settings = settings_of(args, subject, searched if subject is first else {}, trained)
        metric, values, dropped = worth(args, subject, settings)
        with torch.no_grad():
            timings = time_alternating(
                {str(i): lambda b=s.backbone, x=image: b(x) for i, s in enumerate(settings)},
                args.device, warmup=2, repeat=args.repeat)
        points += [{
            'model': s.model, 'family': s.family, 'label': s.label, 'metric': values[i],
            'pruning_ratio': dropped[i],
            'gflops': gflops_of(s.backbone, image, args.flop_shape),
            'latency_ms': 1e3 * timings[str(i)].median,
            'latency_ms_10th_90th': [1e3 * timings[str(i)].low, 1e3 * timings[str(i)].high],
        } for i, s in enumerate(settings)]

    print_table(points, metric)
    flop_shape = args.flop_shape or images[0].shape[-2:]
    cost = f"GFLOPs of the backbone, {'x'.join(map(str, flop_shape))}"
    latency = (f'latency of the backbone in ms (10th to 90th), '
               f"{'x'.join(map(str, images[0].shape[-2:]))}, batch {len(images[0])}, {args.device}")
    figure = frontier([Point(
        p['family'] if len(models) == 1 else f"{p['model']}: {p['family']}", p['label'],
        {cost: p['gflops'], latency: p['latency_ms']},
        p['metric'], {latency: p['latency_ms_10th_90th']}) for p in points],
        metric, f"{', '.join(s.label for s in models)}: other keep ratios, not retrained")
    figures = [write_figure(args, models, figure, 'keep_ratio_sweep')]
    if found['schedules']:
        figure = line_panels([
            Panel([Line(f'r = {GRID[g]:g}', found['layers'], found['mass'][:, g], color=i)
                   for i, g in enumerate(range(1, len(GRID), 4))],
                  'Mass on the top-k columns of the key bias', 'share of the attention mass'),
            Panel([Line(f"≤ {s['budget_gflops']:.4g} GFLOPs", found['layers'],
                        [s['keep_ratio'][i] for i in found['layers']], color=i)
                   for i, s in enumerate(found['schedules'])], 'Searched schedules', 'keep ratio'),
        ], 'block', first.label)
        figures.append(write_figure(args, [first], figure, 'schedule_search'))
    report(args, 'keep_ratio_sweep', models, {
        'metric': metric, 'shape': list(images[0].shape), 'flop_shape': list(flop_shape),
        'points': points, 'search': found, 'thresholds': wished}, figures)
