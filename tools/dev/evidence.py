"""Run the experiments of configs/evidence that are not done yet, then write their page.

Each run trains one network with one seed through mmengine's Runner, tests it in the ways its
experiment names, and leaves one JSON in configs/evidence/results. A run that has its JSON is not
repeated; an interrupted one goes on from its last epoch (work_dirs/evidence). Several calls, or
--jobs, share the work: a run that is under way elsewhere is passed over.

Example:
    bash tools/dev/evidence.sh scratch --seeds 3 --data ../shared
"""

import argparse
import copy
import fcntl
import json
import os
import platform
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / 'configs' / 'evidence'
RESULTS = FOLDER / 'results'
WORK = ROOT / 'work_dirs' / 'evidence'
FIRST_SEEDS = 3  # of everything, before more of anything


class Experiment(NamedTuple):
    """One entry of experiments.yml, where the fields are explained."""

    group: str
    key: str
    title: str
    config: str
    metric: str
    options: dict
    tests: dict
    measure: str | None
    start: list | None
    calibrate: float | None
    fall: float
    probe: list | None
    bf16: bool
    seeds: int

    @property
    def name(self) -> str:
        return f'{self.group}.{self.key}'

    @property
    def settings(self) -> dict:
        """What a result depends on; kept with it, so that no table mixes two settings."""
        fields = dict(options={}, start=None, calibrate=None, fall=0, probe=None, bf16=False)
        return {'config': self.config} | {key: getattr(self, key) for key, default in fields.items()
                                          if getattr(self, key) != default}


def experiments(path: Path = FOLDER / 'experiments.yml') -> list[Experiment]:
    found = []
    for group in yaml.safe_load(path.read_text()):
        defaults = dict(options={}, measure=None, start=None, calibrate=None, fall=0,
                        probe=None, bf16=False, tests={'own': 'own'}, seeds=5) | {
            key: group[key] for key in group if key not in ('group', 'experiments')}
        found += [Experiment(group['group'], key, **defaults | (entry or {}))
                  for key, entry in group['experiments'].items()]
    return found


class Run(NamedTuple):
    experiment: Experiment
    seed: int

    @property
    def label(self) -> str:
        return f'{self.experiment.name}-{self.seed}'

    @property
    def result(self) -> Path:
        return RESULTS / f'{self.label}.json'

    @property
    def work_dir(self) -> Path:
        return WORK / self.label


def runs_of(chosen: list[Experiment], seeds: int | None) -> list[Run]:
    """All runs in the order of their value: the first seeds of every group, then the others."""
    groups = list(dict.fromkeys(experiment.group for experiment in chosen))
    runs = [Run(e, seed) for e in chosen for seed in range(seeds or e.seeds)]
    return sorted(runs, key=lambda run: (run.seed >= FIRST_SEEDS,
                                         groups.index(run.experiment.group), run.seed))


# ------------------------------------------------------------------------------------- one run


def perform(run: Run, data: Path) -> dict:
    """Train and test one network, or probe its start; returns what its JSON holds."""
    experiment = run.experiment
    runner = make_runner(run, data)
    wall, cpu = time.time(), time.process_time()
    found = (probe if experiment.probe else train)(run, runner)
    if experiment.measure:
        found['measured'] = rounded(measured(runner, experiment.measure))
    return {'experiment': experiment.name, 'seed': run.seed, 'settings': experiment.settings,
            'parameters': sum(p.numel() for p in runner.model.parameters()), **found,
            'seconds': round(time.time() - wall), 'cpu_seconds': round(time.process_time() - cpu),
            'environment': environment()}


def make_runner(run: Run, data: Path):
    from mmext.cli.launch import build_runner, load_config
    experiment = run.experiment
    path = str(FOLDER / experiment.config)
    cfg = load_config(path, None, str(run.work_dir), 'none')
    options = dict(experiment.options)
    if cfg.model.backbone.get('init_cfg'):
        options['model.backbone.init_cfg.checkpoint'] = str(
            beside(data, cfg.model.backbone.init_cfg.checkpoint))
    if experiment.start:
        options[experiment.start[1]] = str(last_checkpoint(run, experiment.start[0]))
    options |= {'data_root': str(beside(data, cfg.data_root)), 'randomness.seed': run.seed}
    cfg = load_config(path, options, str(run.work_dir), 'none')
    cfg.experiment_name = f'{run.label}_{time.time():.0f}'  # several Runners in one process
    cfg.resume = (run.work_dir / 'last_checkpoint').exists()
    if cfg.resume:
        cfg.load_from = None  # mmengine would resume from it
    cfg.custom_hooks = [hook for hook in cfg.get('custom_hooks', [])
                        if hook['type'] != 'mmext.RunArtifactsHook']
    return build_runner(cfg, ('train', 'val'))


def train(run: Run, runner) -> dict:
    import torch
    from mmengine.hooks import Hook
    experiment = run.experiment

    class Record(Hook):
        """The curve, kept in the message hub, so that a resumed run goes on with it."""

        priority = 'VERY_HIGH'

        def before_train_epoch(self, runner):
            self.losses = []

        def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
            self.losses.append(outputs['loss'].item())

        def after_val_epoch(self, runner, metrics=None):
            entry = {'epoch': runner.epoch, 'loss': sum(self.losses) / len(self.losses), **metrics}
            if experiment.measure == 'coding_rate':
                entry['coding_rate'] = measured(runner, 'coding_rate')
            curve = runner.message_hub.runtime_info.get('evidence_curve', [])
            runner.message_hub.update_info('evidence_curve', [*curve, rounded(entry)])

    class FallingRatio(Hook):
        """Keep ratios that come down from 1 to the experiment's in its first epochs."""

        def before_train_iter(self, runner, batch_idx, data_batch=None):
            share = min(runner.iter / (experiment.fall * len(runner.train_dataloader)), 1)
            for block, ratio in zip(runner.model.backbone.blocks, ratios, strict=True):
                block.attn.set_keep_ratio(1 - (1 - ratio) * share, val=False)

    if experiment.bf16:
        runner.model.loss = torch.autocast('cpu', dtype=torch.bfloat16)(runner.model.loss)
    runner.register_hook(Record())
    if experiment.fall:
        ratios = [block.attn.rule_train.ratio for block in runner.model.backbone.blocks]
        runner.register_hook(FallingRatio())
    if experiment.calibrate and not (run.work_dir / 'last_checkpoint').exists():
        calibrate(runner, experiment.calibrate)
    runner.train()
    curve = runner.message_hub.get_info('evidence_curve')
    return {'epochs': runner.max_epochs, 'curve': curve,
            'resumed': runner.cfg.resume,  # then with other augmentations than runs of its seed
            'tests': {label: rounded(test(runner, rule))
                      for label, rule in experiment.tests.items()}}


def probe(run: Run, runner) -> dict:
    """A linear classifier on the features at the start of training, as validation prunes them."""
    import torch
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler
    experiment = run.experiment
    runner._init_model_weights()
    if experiment.calibrate:
        calibrate(runner, experiment.calibrate)
    model = runner.model.eval()
    features, labels = [], []
    for loader, count in zip((runner.train_dataloader, runner.val_dataloader), experiment.probe,
                             strict=True):
        picked = samples(runner, loader, count)
        with torch.no_grad():
            features.append(torch.cat([
                model.extract_feat(inputs_of(model, picked[i:i + 50]))[-1]
                for i in range(0, len(picked), 50)]).numpy())
        labels.append([int(sample['data_samples'].gt_label) for sample in picked])
    scaler = StandardScaler().fit(features[0])
    classifier = LogisticRegression(C=.01, max_iter=1000).fit(
        scaler.transform(features[0]), labels[0])
    accuracy = 100 * classifier.score(scaler.transform(features[1]), labels[1])
    return {'tests': {'own': {experiment.metric: rounded(accuracy)}}}


def beside(data: Path, path: str) -> Path:
    """What a config names relative to the checkout: of the data folder, where that holds it."""
    return (data / path if (data / path).exists() else ROOT / path).resolve()


def last_checkpoint(run: Run, name: str) -> Path:
    before = run._replace(experiment=next(e for e in experiments() if e.name == name))
    note = before.work_dir / 'last_checkpoint'
    if not before.result.exists() or not note.exists():
        raise SystemExit(f'{run.label} starts from the weights of {before.label}, which are not '
                         f'here: remove {before.result} and run {name} first')
    return Path(note.read_text())


def test(runner, rule) -> dict:
    """Metrics with a keep ratio (None: all), ``{'tau': ...}`` or the config's own ('own')."""
    if rule == 'own':
        return runner.test()
    backbone = runner.model.backbone
    before = [block.attn.rule_val for block in backbone.blocks]
    if isinstance(rule, dict):
        backbone.set_tau(rule['tau'], train=False)
    else:
        backbone.set_keep_ratio(rule, train=False)
    metrics = runner.test()
    for block, old in zip(backbone.blocks, before, strict=True):
        block.attn.rule_val = old
    return metrics


def samples(runner, loader, count: int) -> list[dict]:
    """About ``count`` images spread evenly over a data set, the same ones each time, as tested."""
    dataset = copy.copy(loader.dataset)
    dataset.pipeline = runner.val_dataloader.dataset.pipeline
    return [dataset[i] for i in range(0, len(dataset), max(len(dataset) // count, 1))]


def inputs_of(model, picked: list[dict]):
    """(n, 3, H, W): samples of a data set as the network takes them."""
    from mmengine.dataset import pseudo_collate
    return model.data_preprocessor(pseudo_collate(picked), False)['inputs']


def measured(runner, kind: str) -> dict:
    """Per block, mean over 200 test images: share of columns kept, or coding rates in nats."""
    from mmext.analysis.intermediates import iterate_layers
    from mmext.analysis.membership import layer_coding_rates
    training = runner.model.training
    model = runner.model.eval()
    found = {}
    picked = samples(runner, runner.val_dataloader, 200)
    for layer in iterate_layers(model.backbone, inputs_of(model, picked)):
        if kind == 'columns':
            keep, bias = (layer.tensors[key].float() for key in ('kept', 'bias'))
            prefix = keep.shape[-1] - layer.hw[0] * layer.hw[1]
            values = {'kept': keep.mean(), 'spread of the bias': bias.std(-1).mean(),
                      'prefix kept': keep[..., :prefix].mean() if prefix else None}
            for word, value in values.items():
                if value is not None:
                    found.setdefault(word, []).append(value.item())
        else:
            for gate, word in ((True, 'variational'), (False, 'variational, full subspace')):
                rates = layer_coding_rates(layer.tensors, use_gate=gate)
                found.setdefault(word, []).append(rates['variational'].mean().item())
    runner.model.train(training)
    return found


def calibrate(runner, spread: float) -> None:
    """A start for the key bias from training images without labels; see docs/pruning.md."""
    from mmext.calibration import calibrate_bias
    picked = samples(runner, runner.train_dataloader, 48)
    runner._init_model_weights()
    runner._init_model_weights = lambda: None  # train() would draw the bias again
    calibrate_bias(runner.model.backbone, inputs_of(runner.model, picked), spread=spread)


def time_attention(tokens: int = 4096, dim: int = 384, heads: int = 6) -> dict:
    """Seconds of one attention layer in inference, all in one process and in alternation."""
    import torch
    from timm.layers import Attention

    from mmext.analysis.timing import time_alternating
    from mmext.layers import DMSA, TSSA, BiasedAttention
    torch.manual_seed(0)
    x = torch.randn(1, tokens, dim)
    layers = {'plain': Attention(dim, heads, qkv_bias=True),
              'key bias': BiasedAttention(dim, heads, qkv_bias=True)}
    for ratio in (.9, .7, .5, .3, .1):
        layers[str(ratio).lstrip('0')] = BiasedAttention(
            dim, heads, qkv_bias=True, keep_ratio=ratio)
    layers |= {'TSSA': TSSA(dim, heads, qkv_bias=True), 'DMSA': DMSA(dim, heads)}
    with torch.inference_mode():
        found = time_alternating(
            {name: partial(layer.eval(), x) for name, layer in layers.items()}, 'cpu')
    return {'tokens': tokens, 'dim': dim, 'heads': heads, 'batch': 1,
            'layers': {name: {key: rounded(1000 * getattr(timing, key))
                              for key in ('median', 'low', 'high')}
                       for name, timing in found.items()}, 'environment': environment()}


def environment() -> dict:
    import torch
    return {'torch': torch.__version__, 'threads': torch.get_num_threads(),
            'machine': platform.machine(), 'python': platform.python_version()}


def rounded(value):
    if isinstance(value, float):
        return float(f'{value:.5g}')
    if isinstance(value, dict):
        return {key: rounded(v) for key, v in value.items()}
    return [rounded(v) for v in value] if isinstance(value, (list, tuple)) else value


# ------------------------------------------------------------------------------------- all runs


@contextmanager
def claimed(run: Run):
    """Yield whether this process may do the run; nobody else does until the end."""
    run.work_dir.mkdir(parents=True, exist_ok=True)
    with open(run.work_dir / 'lock', 'w') as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield not run.result.exists()


def work(runs: list[Run], data: Path, deadline: float) -> None:
    done = [run for run in runs if run.result.exists()]
    for run in runs:
        if run.result.exists():
            continue
        needed = expected(run, done)
        if needed is not None and time.time() + needed > deadline:
            print(f'{run.label}: left for another call, it takes about {needed / 60:.0f} minutes')
            return
        with claimed(run) as mine:
            if not mine:
                continue
            print(time.strftime('%H:%M:%S'), run.label, flush=True)
            found = perform(run, data)
            save(found, run.result)
            done.append(run)
            write_page()
            value = found['tests'][next(iter(found['tests']))][run.experiment.metric]
            print(time.strftime('%H:%M:%S'), run.label, value, f"{found['seconds']} s", flush=True)


def write_page() -> None:
    from mmext.cli import evidence_page
    evidence_page.write(experiments(), FOLDER, RESULTS, ROOT / 'docs' / 'images')


def save(found: dict, path: Path) -> None:
    """Write a result, complete or not at all."""
    from mmext.cli import evidence_page
    unfinished = path.with_suffix('.unfinished')
    unfinished.write_text(evidence_page.dumps(found))
    os.replace(unfinished, path)


def expected(run: Run, done: list[Run]) -> float | None:
    """Seconds of the like that is done: the experiment, else its group; None where nothing is."""
    for key in ('name', 'group'):
        like = [json.loads(other.result.read_text()).get('seconds') for other in done
                if getattr(other.experiment, key) == getattr(run.experiment, key)]
        like = [seconds for seconds in like if seconds]
        if like:
            return sum(like) / len(like)
    return None


def status(runs: list[Run], jobs: int) -> str:
    done = [run for run in runs if run.result.exists()]
    lines, left, unknown = [], 0, 0
    for experiment in {run.experiment.name: run.experiment for run in runs}.values():
        own = [run for run in runs if run.experiment.name == experiment.name]
        finished = [run for run in own if run.result.exists()]
        seconds = expected(own[0], done)
        missing = len(own) - len(finished)
        left += missing * (seconds or 0)
        unknown += missing * (seconds is None)
        pace = f'{seconds / 60:.1f} min a run' if seconds else 'length unknown'
        lines.append(f'{experiment.name:30} {len(finished)} of {len(own)} seeds  {pace:16} '
                     f'{experiment.title}')
    lines.append(f'{len(done)} of {len(runs)} runs done; left: {left / 3600 / jobs:.1f} hours with '
                 f'{jobs} job(s)' + (f' and {unknown} runs of unknown length' if unknown else ''))
    return '\n'.join(lines)


def choose(names: list[str]) -> list[Experiment]:
    everything = experiments()
    for name in names:
        if not any(name in (e.group, e.name) for e in everything):
            groups = list(dict.fromkeys(e.group for e in everything))
            raise SystemExit(f'error: no experiment or group {name!r}; groups are '
                             f'{", ".join(groups)}, --list names the experiments')
    return [e for e in everything if not names or e.group in names or e.name in names]


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('names', nargs='*', metavar='NAME',
                        help='groups or experiments (default: all)')
    parser.add_argument('--list', action='store_true', help='name the experiments and stop')
    parser.add_argument('--status', action='store_true', help='say what is done and what is left')
    parser.add_argument('--time', action='store_true',
                        help='measure one attention layer again, on a machine that does nothing '
                        'else, and write the page')
    parser.add_argument('--page', action='store_true', help='write the page alone')
    parser.add_argument('--seeds', type=int, help='of each experiment (default: as the file says)')
    parser.add_argument('--jobs', type=int, default=1, help='runs at a time (default: 1)')
    parser.add_argument('--minutes', type=float, default=float('inf'),
                        help='start no run that would not end within this time')
    parser.add_argument(
        '--data', type=Path, default=Path(os.environ.get('MMEXT_SHARED', ROOT.parent / 'shared')),
        help='folder with data/ and weights/ (default: $MMEXT_SHARED, else ../shared beside the '
        'checkout)')
    args = parser.parse_args(argv)
    chosen = choose(args.names)
    runs = runs_of(chosen, args.seeds)
    if args.list:
        print('\n'.join(f'{e.name:30} {e.config:45} {e.title}' for e in chosen))
        return
    if args.status:
        print(status(runs, args.jobs))
        return
    if args.time:
        save(time_attention(), RESULTS / 'attention_time.json')
    elif not args.page:
        if args.jobs > 1:
            call = [sys.executable, __file__, *args.names, '--data', str(args.data),
                    '--minutes', str(args.minutes)]
            call += ['--seeds', str(args.seeds)] if args.seeds else []
            failed = [p.wait() for p in [subprocess.Popen(call) for _ in range(args.jobs)]]
            if any(failed):
                raise SystemExit('error: a run failed, see above; the same call goes on')
        else:
            work(runs, args.data, time.time() + 60 * args.minutes)
    write_page()


if __name__ == '__main__':
    main()
