"""A table of finished runs from their work dirs, what tools/analysis_tools/summarize.py prints."""

import json
from pathlib import Path

import torch

from mmext.analysis.timing import environment, time_alternating
from mmext.cli.config_check import ConfigError
from mmext.cli.flops import count_config
from mmext.cli.launch import build_model, default_shape, load_config

NAMES = {  # of the metrics, in the order of the columns
    'accuracy/top1': 'top-1 (%)', 'accuracy/top5': 'top-5 (%)',
    'coco/bbox_mAP': 'box AP', 'coco/segm_mAP': 'mask AP',
}


def config_of(work_dir: Path) -> Path:
    configs = sorted(work_dir.glob('*.py'), key=lambda path: path.stat().st_mtime)
    if not configs:
        raise ConfigError(f'{work_dir} holds no config (*.py): it is not the work dir of a run')
    return configs[-1]


def validations(work_dir: Path) -> tuple[list[dict], dict]:
    """Metrics of every validation in order of time, and what is known about the run."""
    path = work_dir / 'metrics.json'
    if path.exists():
        content = json.loads(path.read_text())
        return content['history'], {
            'finished': content['finished'], 'seed': content['seed'],
            'trained on': content['environment']['device']}
    logs = sorted(work_dir.glob('*/vis_data/scalars.json')) or sorted(
        work_dir.glob('*/vis_data/*.json'))
    lines = [json.loads(line) for log in logs[-1:] for line in log.read_text().splitlines() if line]
    return [{'iter': line.get('step'), **line} for line in lines if set(line) & set(NAMES)], {}


def pick(history: list[dict], which: str) -> dict:
    """The last validation, or the one with the best first metric; {} without any."""
    if not history or which == 'last':
        return history[-1] if history else {}
    key = next((name for name in NAMES if name in history[-1]), None)
    return max(history, key=lambda entry: entry.get(key, float('-inf'))) if key else history[-1]


def row_of(work_dir: Path, which: str) -> dict:
    config = config_of(work_dir)
    history, about = validations(work_dir)
    entry = pick(history, which)
    counts = count_config(str(config))
    row = {'run': work_dir.name, 'config': config.name}
    row |= {label: entry[name] for name, label in NAMES.items() if name in entry}
    row |= {'params (M)': counts['params'] / 1e6, 'GFLOPs': counts['gflops'],
            'backbone GFLOPs': counts['parts']['backbone']['gflops'],
            'input': 'x'.join(map(str, counts['shape'])), 'at iteration': entry.get('iter')}
    return row | about


@torch.no_grad()
def add_latency(rows: list[dict], work_dirs: list[Path], device: str, repeat: int) -> None:
    """Median milliseconds of each backbone on one image, as a further column."""
    functions = {}
    for work_dir in work_dirs:
        cfg = load_config(str(config_of(work_dir)), None, None, 'none')
        model = build_model(cfg).to(device)
        image = torch.rand(1, 3, *default_shape(model, cfg), device=device)
        functions[work_dir] = lambda backbone=model.backbone, image=image: backbone(image)
    timings = time_alternating(functions, device, warmup=3, repeat=repeat)
    column = f"backbone ms, batch 1, {environment(device)['hardware']}"
    for row, work_dir in zip(rows, work_dirs, strict=True):
        row[column] = 1e3 * timings[work_dir].median


def text(value) -> str:
    if value is None:
        return '–'
    return f'{value:.3f}' if isinstance(value, float) else str(value)


def markdown(rows: list[dict]) -> str:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = ['| ' + ' | '.join(columns) + ' |', '|' + '---|' * len(columns)]
    lines += ['| ' + ' | '.join(text(row.get(column)) for column in columns) + ' |'
              for row in rows]
    return '\n'.join(lines) + '\n'


def table(work_dirs: list[Path], which: str) -> list[dict]:
    """A row of column -> value for each work dir; ``which`` validation: 'last' or 'best'.

    Raises:
        ConfigError: a work dir does not exist or holds no config.
    """
    for work_dir in work_dirs:
        if not work_dir.is_dir():
            raise ConfigError(f'{work_dir} is no folder')
    return [row_of(work_dir, which) for work_dir in work_dirs]
