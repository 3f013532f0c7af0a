"""Tables, figures and sentences of configs/evidence/README.md from the results of the runs.

The page is its own template: what stands between ``<!-- evidence: WORDS -->`` and ``<!-- end -->``
is written anew by the function of the first word, with the other words as its arguments. Means are
over seeds, +- is the standard error of the mean; differences are between runs of equal seed (same
order of images, same augmentations; same start where the parameters are the same), with the
interval of Student's t at 95 %.
"""

import json
import math
import re
import shlex
from pathlib import Path
from statistics import mean, stdev

import numpy as np
from scipy.stats import t as student

from mmext.analysis.drawing import Line, Panel, line_panels, save

BLOCK = re.compile(r'(<!-- evidence: (.*?) -->)(\n?).*?(<!-- end -->)', re.S)
ABSENT = 'not run yet'


class Results:
    """Results of all experiments, by name and seed.

    Raises:
        ValueError: a result was made with other settings than its experiment has now, or names no
            experiment.
    """

    def __init__(self, experiments, folder: Path):
        self.experiments = {experiment.name: experiment for experiment in experiments}
        self.runs = {name: {} for name in self.experiments}
        for path in sorted(folder.glob('*.json')):
            found = json.loads(path.read_text())
            experiment = self.experiments.get(found.get('experiment'))
            if experiment is None or path.stem != f'{experiment.name}-{found["seed"]}':
                if 'experiment' in found:
                    raise ValueError(f'{path} belongs to no experiment of experiments.yml')
                continue  # a measurement, read by name
            if found['settings'] != experiment.settings:
                raise ValueError(f'{path} was made with other settings than experiments.yml has: '
                                 f'{found["settings"]} instead of {experiment.settings}; remove it '
                                 'and run again')
            self.runs[experiment.name][found['seed']] = found
        self.folder = folder

    def group(self, *groups: str):
        found = [e for e in self.experiments.values() if e.group in groups]
        if not found:
            raise ValueError(f'no experiment is of group {" or ".join(groups)}')
        return found

    def values(self, name: str, label: str | None = None) -> dict[int, float]:
        """Seed -> metric of one test, the experiment's first one by default."""
        experiment = self.experiments[name]
        label = label or next(iter(experiment.tests))
        return {seed: run['tests'][label][experiment.metric]
                for seed, run in self.runs[name].items() if label in run['tests']}

    def measurement(self, name: str) -> dict | None:
        path = self.folder / f'{name}.json'
        return json.loads(path.read_text()) if path.exists() else None


# ------------------------------------------------------------------------------------ statistics


def standard_error(values: list[float]) -> float:
    """Of the mean; 0 for one value, whose spread is not known."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0


def spread(values) -> str:
    """Mean and standard error of the mean."""
    values = list(values)
    if not values:
        return ABSENT.capitalize() + '.'
    if len(values) == 1:
        return f'{values[0]:.1f}'
    return f'{mean(values):.1f} ± {standard_error(values):.1f}'


def difference(a: dict[int, float], b: dict[int, float]):
    """Mean of a - b over the seeds of both, half the 95 % interval (None of one seed), deviation,
    number of seeds; None without a common seed."""
    both = [a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())]
    if not both:
        return None
    if len(both) == 1:
        return both[0], None, None, 1
    deviation = stdev(both)
    half = student.ppf(.975, len(both) - 1) * deviation / math.sqrt(len(both))
    return mean(both), half, deviation, len(both)


def signed(value: float) -> str:
    return f'{value:+.1f}'.replace('-', '−')


def interval(found) -> str:
    if found is None:
        return ''
    center, half, _, _ = found
    if half is None:
        return f'{signed(center)} (one seed)'
    return f'{signed(center)} ({signed(center - half)} to {signed(center + half)})'


def seeds_for(deviation: float, half: float, most: int = 200) -> int | None:
    """Seeds after which the interval is +- ``half``, if the deviation stays what it is."""
    return next((n for n in range(2, most)
                 if student.ppf(.975, n - 1) * deviation / math.sqrt(n) <= half), None)


# --------------------------------------------------------------------------- what the page calls


def table(results, *groups) -> str:
    """One row an experiment; differences to the first of the first group."""
    experiments = results.group(*groups)
    first = experiments[0]
    lines = [f'| | parameters | {unit(first)} | seeds | minus "{first.title}" (95 % interval) |',
             '|---|--:|--:|--:|--:|']
    for experiment in experiments:
        runs = results.runs[experiment.name]
        if not runs:
            continue
        sizes = {run['parameters'] for run in runs.values()}
        values = results.values(experiment.name)
        against = '' if experiment is first else interval(
            difference(values, results.values(first.name)))
        lines.append(f'| {experiment.title} | {", ".join(f"{n:,}" for n in sizes)} | '
                     f'{spread(values.values())} | {len(runs)} | {against} |')
    return with_absent(results, experiments, lines)


def with_absent(results, experiments, lines: list[str]) -> str:
    """A table's lines, two of them its head, and below them what has no run yet."""
    absent = [f'"{e.title}"' for e in experiments if not results.runs[e.name]]
    note = f'{ABSENT.capitalize()}: {", ".join(absent)}.' if absent else ''
    return '\n\n'.join(['\n'.join(lines)] * (len(lines) > 2) + [note] * bool(note))


def matrix(results, *groups) -> str:
    """Rows: how it was trained; columns: how it was tested."""
    experiments = [e for e in results.group(*groups) if len(e.tests) > 1]
    labels = list(dict.fromkeys(label for e in experiments for label in e.tests if label != 'own'))
    lines = ['| trained, tested: | ' + ' | '.join(labels) + ' |', '|---' * (len(labels) + 1) + '|']
    for experiment in experiments:
        if not results.runs[experiment.name]:
            continue
        cells = [spread(results.values(experiment.name, label).values()) for label in labels]
        lines.append(f'| {experiment.title} | ' + ' | '.join(cells) + ' |')
    return with_absent(results, experiments, lines)


def compare(results, a: str, b: str, label_a: str | None = None, label_b: str | None = None) -> str:
    """A sentence: by how much, how sure, and how many seeds would settle a point."""
    found = difference(results.values(a, label_a), results.values(b, label_b))
    names = []
    for name, label in ((a, label_a), (b, label_b)):
        names.append(f'"{results.experiments[name].title}"' + (f' tested {label}' if label else ''))
    if found is None:
        return f'{names[0]} against {names[1]}: {ABSENT}.'
    center, half, deviation, count = found
    scale = 'points' if results.experiments[a].metric.startswith('accuracy') else 'of metric'
    if half is None:
        return (f'{names[0]} minus {names[1]}: {signed(center)} {scale} in one seed, which says '
                'nothing about its spread.')
    verdict = 'not told apart' if abs(center) <= half else 'higher' if center > 0 else 'lower'
    needed = seeds_for(deviation, 1)
    more = f'; ± 1 point would take about {needed} seeds' if half > 1 and needed else ''
    return (f'{names[0]} minus {names[1]}: {signed(center)} {scale}, 95 % interval '
            f'{signed(center - half)} to {signed(center + half)} ({count} seeds, paired): '
            f'**{verdict}**{more}.')


def converged(results, *groups) -> str:
    """Slope of the accuracy over the last quarter of training, in points per epoch."""
    lines = ['| | epochs | validation accuracy, points per epoch in the last quarter '
             '| training loss at the end |', '|---|--:|--:|--:|']
    for experiment in results.group(*groups):
        slopes, losses, epochs = [], [], set()
        for run in results.runs[experiment.name].values():
            curve = run.get('curve', [])
            last = [point for point in curve if point['epoch'] > .75 * run['epochs']]
            if len(last) < 2:
                continue
            slopes.append(slope([p['epoch'] for p in last], [p[experiment.metric] for p in last]))
            losses.append(curve[-1]['loss'])
            epochs.add(run['epochs'])
        if slopes:
            lines.append(f'| {experiment.title} | {", ".join(map(str, epochs))} | '
                         f'{twodigits(slopes)} | {mean(losses):.2f} |')
    return '\n'.join(lines) if len(lines) > 2 else ABSENT.capitalize() + '.'


def slope(x: list[float], y: list[float]) -> float:
    mx, my = mean(x), mean(y)
    return sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True)) / sum(
        (a - mx) ** 2 for a in x)


def twodigits(values) -> str:
    error = f' ± {stdev(values) / math.sqrt(len(values)):.2f}' if len(values) > 1 else ''
    return f'{mean(values):+.2f}'.replace('-', '−') + error


def epochs_to(results, reference: str, *names) -> str:
    """The first epoch whose validation reaches the reference's final accuracy, same seed."""
    target = results.experiments[reference]
    if not results.runs[reference]:
        return ABSENT.capitalize() + '.'
    lines = [f'| | epochs to the final accuracy of "{target.title}" | seeds that reach it |',
             '|---|--:|--:|']
    for name in names or [e.name for e in results.group(target.group)]:
        reached, runs = [], 0
        for seed, run in results.runs[name].items():
            if seed not in results.runs[reference]:
                continue
            runs += 1
            final = results.runs[reference][seed]['curve'][-1][target.metric]
            at = [point['epoch'] for point in run['curve'] if point[target.metric] >= final]
            reached += at[:1]
        if runs:
            lines.append(f'| {results.experiments[name].title} | '
                         f'{spread(reached) if reached else "—"} | {len(reached)} of {runs} |')
    return '\n'.join(lines)


def blocks(results, word: str, *groups) -> str:
    """What was measured in each block at the end, mean over seeds."""
    rows = []
    for experiment in results.group(*groups):
        found = [run['measured'][word] for run in results.runs[experiment.name].values()
                 if word in run.get('measured', {})]
        if found:
            rows.append((experiment.title, [mean(column) for column in zip(*found, strict=True)]))
    if not rows:
        return ABSENT.capitalize() + '.'
    depth = max(len(values) for _, values in rows)
    lines = ['| block | ' + ' | '.join(map(str, range(depth))) + ' |', '|---' * (depth + 1) + '|']
    lines += [f'| {title} | ' + ' | '.join(f'{value:.3g}' for value in values) + ' |'
              for title, values in rows]
    return '\n'.join(lines)


def points(results, name: str, *keys) -> str:
    """A single run's curve: epochs and the named metrics."""
    runs = list(results.runs[name].values())
    if not runs:
        return ABSENT.capitalize() + '.'
    lines = ['| epochs | ' + ' | '.join(keys) + ' |', '|--:' * (len(keys) + 1) + '|']
    lines += [f'| {point["epoch"]} | ' + ' | '.join(f'{point[key]:.3f}' for key in keys) + ' |'
              for point in runs[0]['curve']]
    return '\n'.join(lines)


def attention_time(results) -> str:
    found = results.measurement('attention_time')
    if found is None:
        return ABSENT.capitalize() + '.'
    lines = ['| layer | ms, median (10th to 90th percentile) | times as fast as plain |',
             '|---|--:|--:|']
    plain = found['layers']['plain']['median']
    for name, times in found['layers'].items():
        lines.append(f'| {name} | {times["median"]:.1f} ({times["low"]:.1f} to '
                     f'{times["high"]:.1f}) | {plain / times["median"]:.2f} |')
    return '\n'.join(lines)


def done(results, *groups) -> str:
    """How many runs the numbers of these groups rest on."""
    names = results.group(*groups)
    count = sum(len(results.runs[e.name]) for e in names)
    return f'{count} runs of {len(names)} experiments'


def unit(experiment) -> str:
    return 'top-1, %' if experiment.metric.startswith('accuracy') else experiment.metric


def figure(results, name: str, title: str) -> str:
    if FIGURES[name](results) is None:
        return f'Figure "{title}": {ABSENT}.'
    return f'![{title}](../../docs/images/{name}.png)'


CALLS = {function.__name__: function for function in (
    table, matrix, compare, converged, epochs_to, blocks, points, attention_time, done, figure)}


def render(text: str, results: Results) -> str:
    """The page with every marked block written anew."""

    def fill(match):
        mark, words, newline, end = match.groups()
        name, *arguments = shlex.split(words)
        if name not in CALLS:
            raise ValueError(f'the page calls {name!r}; there are {", ".join(CALLS)}')
        content = CALLS[name](results, *arguments)
        return f'{mark}\n\n{content}\n\n{end}' if newline else f'{mark}{content}{end}'

    return BLOCK.sub(fill, text)


# --------------------------------------------------------------------------------------- figures


def seeds(results, *groups) -> str:
    """How many seeds a figure's lines rest on, of the experiments that have any."""
    counts = {len(results.runs[e.name]) for e in results.group(*groups)} - {0} or {0}
    ends = sorted({min(counts), max(counts)})
    return ' to '.join(map(str, ends)) + (' seed' if ends == [1] else ' seeds')


def keep_ratio_figure(results):
    """Accuracy against the keep ratio in testing, a line a training; bands are standard errors."""
    lines = []
    for experiment in results.group('scratch', 'scratch-more'):
        ratios = sorted((1. if label == 'dense' else rule, label)
                        for label, rule in experiment.tests.items()
                        if label == 'dense' or isinstance(rule, float))
        values = [list(results.values(experiment.name, label).values()) for _, label in ratios]
        if len(experiment.tests) > 1 and all(values):
            lines.append(Line(
                experiment.title, [ratio for ratio, _ in ratios], [mean(v) for v in values],
                [standard_error(v) for v in values],
                color=len(lines)))
    if not lines:
        return None
    level = results.values('scratch.plain').values()
    return line_panels(
        [Panel(lines, f'trained as the legend says ({seeds(results, "scratch")})', 'top-1, %',
               level=(mean(level), 'no key bias') if level else None)],
        'keep ratio in testing, the same in every block')


def curves_figure(results):
    panels = []
    for key, title in (('accuracy/top1', 'top-1 in validation, %'), ('loss', 'training loss')):
        lines = []
        for experiment in results.group('dmst'):
            curves = [run['curve'] for run in results.runs[experiment.name].values()]
            if curves:
                at = list(zip(*[[point[key] for point in curve] for curve in curves], strict=True))
                lines.append(Line(
                    experiment.title, [point['epoch'] for point in curves[0]],
                    [mean(v) for v in at],
                    [standard_error(v) for v in at],
                    color=len(lines)))
        panels.append(Panel(lines, title, title))
    return line_panels(panels, 'epoch', seeds(results, 'dmst')) if panels[0].lines else None


def rate_figure(results):
    """Coding rate over the blocks at the end, and of the last block over training."""
    depth, training = [], []
    for experiment in results.group('dmst'):
        runs = [run for run in results.runs[experiment.name].values() if 'measured' in run]
        if not runs:
            continue
        for word in ('variational', 'variational, full subspace'):
            gated = any(run['measured'][word] != run['measured']['variational'] for run in runs)
            if word != 'variational' and not gated:
                continue
            title = experiment.title + (', full subspace' if word != 'variational' else '')
            style = '-' if word == 'variational' else '--'
            color = len({line.color for line in depth}) - (style == '--')
            columns = list(zip(*[run['measured'][word] for run in runs], strict=True))
            depth.append(Line(title, range(len(columns)), [mean(c) for c in columns], None, style,
                              color))
            curves = list(zip(*[[mean(p['coding_rate'][word]) for p in run['curve']]
                                for run in runs], strict=True))
            training.append(Line(title, [p['epoch'] for p in runs[0]['curve']],
                                 [mean(c) for c in curves], None, style, color))
    if not depth:
        return None
    return line_panels([Panel(depth, 'over the blocks, after training', 'rate in nats'),
                        Panel(training, 'mean of the blocks, over training', 'rate in nats')],
                       'block (left), epoch (right)', seeds(results, 'dmst'))


def time_figure(results):
    """Accuracy or mAP (small networks) against the time of a layer where attention is what costs.

    A panel for training from scratch, fine-tuning and detection; a schedule stands at the mean of
    its layers' times.
    """
    found = results.measurement('attention_time')
    if found is None:
        return None
    measured = {float(label): times['median'] for label, times in found['layers'].items()
                if re.fullmatch(r'[.\d]+', label)}
    measured[1.] = found['layers']['key bias']['median']
    ratios = sorted(measured)

    def milliseconds(rule) -> float:
        first, last = rule if isinstance(rule, list) else (rule or 1., rule or 1.)
        layers = np.linspace(first, last, 12)
        return float(np.interp(layers, ratios, [measured[r] for r in ratios]).mean())

    panels = []
    for title, groups in (('from scratch', ('scratch', 'scratch-more')),
                          ('fine-tuning', ('fine-tune',)), ('detection', ('detection',))):
        lines = []
        for experiment in results.group(*groups):
            # a schedule and a ratio of the same time would cross each other's line
            rules = {label: rule for label, rule in experiment.tests.items()
                     if rule is None or isinstance(rule, float)
                     or (isinstance(rule, list) and '.5' not in experiment.tests)}
            at = sorted((milliseconds(rule), list(results.values(experiment.name, label).values()))
                        for label, rule in rules.items())
            if len(at) > 1 and all(v for _, v in at):
                lines.append(Line(
                    experiment.title, [ms for ms, _ in at], [mean(v) for _, v in at],
                    [standard_error(v) for _, v in at],
                    color=len(lines)))
        if lines:
            panels.append(Panel(lines, f'{title} ({seeds(results, *groups)})',
                                unit(results.group(*groups)[0])))
    if not panels:
        return None
    plain = found['layers']['plain']['median']
    return line_panels(panels, f'ms of an attention layer at {found["tokens"]:,} tokens',
                       f'plain fused attention: {plain:.0f} ms')


FIGURES = {'evidence_keep_ratio': keep_ratio_figure, 'evidence_curves': curves_figure,
           'evidence_coding_rate': rate_figure, 'evidence_time': time_figure}


def dumps(found: dict) -> str:
    """JSON with a line for each key of the first level and each point of a curve."""
    lines = []
    for key, value in found.items():
        text = json.dumps(value, ensure_ascii=False)
        if isinstance(value, (list, dict)) and len(text) > 100:
            items = [json.dumps(item, ensure_ascii=False) for item in value] if isinstance(
                value, list) else [f'{json.dumps(k, ensure_ascii=False)}: '
                                   f'{json.dumps(v, ensure_ascii=False)}' for k, v in value.items()]
            left, right = '[]' if isinstance(value, list) else '{}'
            text = f'{left}\n  ' + ',\n  '.join(items) + right
        lines.append(f' {json.dumps(key)}: {text}')
    return '{\n' + ',\n'.join(lines) + '\n}\n'


def write(experiments, folder: Path, results: Path, images: Path) -> None:
    results = Results(experiments, results)
    page = folder / 'README.md'
    page.write_text(render(page.read_text(), results))
    for name, draw in FIGURES.items():
        drawn = draw(results)
        if drawn is not None:
            save(drawn, images / f'{name}.png')
