"""A room imports only from the rooms below it (docs/contributing.md)."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LEAVES = {'compat', 'registry', 'checkpoints'}
MAY_IMPORT = {
    'ops': set(),
    'layers': {'ops'},
    'compat': set(),
    'registry': {'compat', 'checkpoints'},
    'checkpoints': {'ops', 'layers', 'compat'},
    'datasets': {'compat', 'registry'},
    'models': {'ops', 'layers', *LEAVES},
    'engine': {'ops', 'layers', 'models', 'datasets', *LEAVES},
    'analysis': {'ops', 'layers', 'models', 'datasets', *LEAVES},
    'cli': {'ops', 'layers', 'models', 'datasets', 'engine', 'analysis', *LEAVES},
}
OPENMMLAB = {'mmengine', 'mmcv', 'mmdet', 'mmpretrain'}


def imported(path):
    """Absolute names of everything a module imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = list(path.relative_to(ROOT).parts[:-1])
            base = package[:len(package) - node.level + 1] if node.level else []
            module = '.'.join([*base, *([node.module] if node.module else [])])
            yield from (f'{module}.{alias.name}' for alias in node.names)


@pytest.mark.parametrize('room', MAY_IMPORT)
def test_room(room):
    files = sorted((ROOT / 'mmext' / room).rglob('*.py')) or [ROOT / 'mmext' / f'{room}.py']
    assert files[0].exists()
    for path in files:
        for name in imported(path):
            if name.startswith('mmext.'):
                other = name.split('.')[1]
                assert other == room or other in MAY_IMPORT[room] or other == '__version__', (
                    f'{path.relative_to(ROOT)} imports {name}')
            if room in ('ops', 'layers'):
                assert name.split('.')[0] not in OPENMMLAB, f'{path.relative_to(ROOT)}: {name}'


def test_every_room_is_listed():
    rooms = {p.name for p in (ROOT / 'mmext').iterdir() if (p / '__init__.py').exists()}
    assert rooms | {'registry'} == set(MAY_IMPORT)
