"""The model zoo as a table, read from the metafiles; imports neither torch nor OpenMMLab."""

from pathlib import Path

import yaml

from .package_files import TRAINED, shipped

# what a config trains, by the algorithm that its name begins with; else a classifier
TASKS = {
    'mask-rcnn': 'Instance Segmentation', 'cascade-mask-rcnn': 'Instance Segmentation',
    'faster-rcnn': 'Object Detection',
    'retinanet': 'Object Detection', 'atss': 'Object Detection', 'fcos': 'Object Detection',
    'panoptic': 'Panoptic Segmentation', 'semantic': 'Semantic Segmentation',
    'mask2former': 'Panoptic Segmentation', 'dino': 'Object Detection',
}


def read_index() -> list[dict]:
    """One dict a config: ``config`` (a name that every command takes), ``name``, ``task``,
    ``parameters``, ``gflops`` (None: not stated), ``data``, ``weights`` (what to give as
    ``--model``, or None)."""
    index = shipped('model-index.yml')
    shipped_models = {config: name for name, config in TRAINED.items()}
    entries = []
    for imported in yaml.safe_load(index.read_text())['Import']:
        for model in yaml.safe_load(shipped(imported).read_text())['Models']:
            config = model['Config'].removeprefix('configs/')
            facts = model.get('Metadata') or {}
            flops = facts.get('FLOPs')
            entries.append({
                'config': f'mmext::{config}',
                'name': model['Name'],
                'task': task_of(model),
                'parameters': facts.get('Parameters'),
                'gflops': None if flops is None else flops / 1e9,
                'data': facts.get('Training Data'),
                'weights': shipped_models.get(config)})
    return entries


def task_of(model: dict) -> str:
    """What the metafile says under Results, last line; without results by the config's name."""
    results = model.get('Results') or []
    if results:
        return results[-1]['Task']
    stem = Path(model['Config']).stem.removeprefix('digits_').removeprefix('own_').replace('_', '-')
    if stem.startswith('mask2former') and 'panoptic' not in stem:
        return 'Instance Segmentation'
    return next((task for start, task in TASKS.items() if f'{stem}-'.startswith(f'{start}-')),
                'Image Classification')


def table(entries: list[dict]) -> str:
    """Lines of text: config, task, millions of parameters, GFLOPs, name of shipped weights."""
    rows = [('config', 'task', 'params', 'GFLOPs', 'weights')]
    for entry in entries:
        parameters, gflops = entry['parameters'], entry['gflops']
        rows.append((
            entry['config'], entry['task'],
            '' if parameters is None else f'{parameters / 1e6:.2f} M',
            '' if gflops is None else f'{gflops:.2f}',
            f"--model {entry['weights']}" if entry['weights'] else ''))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right = {2, 3}
    return '\n'.join('  '.join(
        cell.rjust(width) if i in right else cell.ljust(width)
        for i, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip() for row in rows)
