"""A room imports only from the rooms below it (docs/contributing.md); every file has a room."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LEAVES = {'compat', 'registry', 'checkpoints'}
BELOW = {'ops', 'layers', 'models', 'datasets', *LEAVES}
MAY_IMPORT = {
    'ops': set(),
    'layers': {'ops'},
    'pruning': {'ops', 'layers'},
    'calibration': {'ops', 'layers', 'pruning'},
    'recovery': {'ops', 'layers', 'analysis', 'pruning', 'calibration'},
    'compat': set(),
    'registry': {'compat', 'checkpoints'},
    'checkpoints': {'ops', 'layers', 'compat'},
    'datasets': {'compat', 'registry'},
    'models': {'ops', 'layers', 'pruning', *LEAVES},
    'timm_models': {*BELOW, 'pruning'},
    'engine': {*BELOW, 'pruning'},
    'analysis': {*BELOW, 'pruning'},
    'cli': {*BELOW, 'pruning', 'timm_models', 'engine', 'analysis'},
    '__main__': {'cli'},
}
OPENMMLAB = {'mmengine', 'mmcv', 'mmdet', 'mmpretrain'}
WITHOUT_OPENMMLAB = ('ops', 'layers', 'pruning', 'calibration', 'recovery', 'timm_models')
FILES = sorted(path for folder in ('mmext', 'tools') for path in (ROOT / folder).rglob('*.py')
               if '.mim' not in path.parts)


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


@pytest.mark.parametrize('path', FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_file_imports_from_below(path):
    parts = path.relative_to(ROOT).parts
    names = list(imported(path))
    if parts[0] == 'tools':
        neighbors = {other.stem for other in (ROOT / 'tools').rglob('*.py')}
        for name in names:
            assert name.split('.')[0] not in neighbors | {'tools', 'tests'}, f'imports {name}'
        return
    room = parts[1].removesuffix('.py')
    if room == '__init__':
        assert not {name for name in names if name.startswith('mmext.')}, 'the root is lazy'
        return
    for name in names:
        if name.split('.')[0] == 'mmext' and name != 'mmext':
            other = name.split('.')[1]
            assert other == room or other in MAY_IMPORT[room] or other == '__version__', (
                f'imports {name}')
        assert not (room in WITHOUT_OPENMMLAB and name.split('.')[0] in OPENMMLAB), name


def test_every_room_is_listed():
    rooms = {path.relative_to(ROOT / 'mmext').parts[0].removesuffix('.py')
             for path in FILES if 'mmext' in path.relative_to(ROOT).parts[:1]}
    assert rooms - {'__init__'} == set(MAY_IMPORT)


def test_no_circle():
    """Each room's list names only rooms whose own lists do not lead back."""
    left = dict(MAY_IMPORT)
    while left:
        ground = {room for room, below in left.items() if not below & set(left)}
        assert ground, f'a circle among {sorted(left)}'
        left = {room: below for room, below in left.items() if room not in ground}


def test_a_function_does_not_hide_a_module():
    """`mmext.ops.x` is either the module or the function of that name, for everybody."""
    known = {'mmext/cli/main.py'}  # the entry point's name
    hidden = {str(path.relative_to(ROOT)) for path in FILES if path.stem in {
        node.name for node in ast.parse(path.read_text()).body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))}}
    assert {path for path in hidden if path.startswith('mmext')} <= known
