"""What importing the lower rooms needs: nothing for mmext, torch for ops, timm too for layers."""

import subprocess
import sys

MM = ('mmengine', 'mmcv', 'mmdet', 'mmpretrain')


def run(code: str) -> None:
    result = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def hidden(names) -> str:
    """Code after which importing any of ``names`` fails."""
    return f'import sys\nfor name in {tuple(names)!r}:\n    sys.modules[name] = None\n'


def test_package_is_light():
    run(f'import sys, mmext\n'
        f'heavy = {{"torch", "numpy", "timm"}} | set({MM!r})\n'
        f'assert not heavy & set(sys.modules), heavy & set(sys.modules)')


def test_ops_need_torch_alone():
    run(hidden((*MM, 'timm', 'torchvision')) + 'import mmext.ops\n'
        'import pkgutil, importlib\n'
        'names = [m.name for m in pkgutil.iter_modules(mmext.ops.__path__)]\n'
        'assert names\n'
        'for name in names:\n    importlib.import_module("mmext.ops." + name)\n')


def test_layers_need_no_openmmlab():
    run(hidden(MM) + 'import mmext.layers\n'
        'import pkgutil, importlib\n'
        'names = [m.name for m in pkgutil.iter_modules(mmext.layers.__path__)]\n'
        'assert names\n'
        'for name in names:\n    importlib.import_module("mmext.layers." + name)\n')
