"""`--help` of every tool answers at once: nothing heavy is imported before the arguments are read.
"""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = sorted((ROOT / 'tools').rglob('*.py'))
HEAVY = {'torch', 'torchvision', 'timm', 'mmengine', 'mmcv', 'mmdet', 'mmpretrain', 'matplotlib',
         'sklearn', 'scipy'}
HELP = """
import contextlib, io, json, runpy, sys
sys.argv = [sys.argv[1], '--help']
text = io.StringIO()
with contextlib.redirect_stdout(text):
    try:
        runpy.run_path(sys.argv[0], run_name='__main__')
    except SystemExit as end:
        code = end.code
print(json.dumps([code, text.getvalue(), sorted({name.split('.')[0] for name in sys.modules})]))
"""


@pytest.mark.parametrize('tool', TOOLS, ids=lambda path: path.stem)
def test_help(tool):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = subprocess.run([sys.executable, '-c', HELP, str(tool)], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert run.returncode == 0, run.stderr
    code, text, modules = json.loads(run.stdout)
    assert not code and 'usage:' in text and not HEAVY & set(modules)
    first = tool.read_text().split('"""')[1].split('\n')[0].split()[:4]
    assert ' '.join(first) in ' '.join(text.split()), 'the help says what the tool is for'
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1


def test_no_library_is_imported_for_arguments_and_errors():
    code = ('import sys, mmext.cli.arguments, mmext.cli.clear_errors, mmext.cli.config_walk; '
            'print([name for name in sys.modules if name.split(".")[0] in '
            '("torch", "mmengine", "numpy")])')
    run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert run.stdout.strip() == '[]', run.stderr
