"""docs/tour.ipynb: its cells run in their order, and what it shows is small and not made up."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / 'docs' / 'tour.ipynb'
CELLS = [cell for cell in json.loads(NOTEBOOK.read_text())['cells']
         if cell['cell_type'] == 'code']
CHECKS = """
assert precision[None] > .7 and abs(precision[(.9, .1)] - precision[None]) < .05, precision
assert set(times) == {None, (.9, .1), .3} and times[None].median > times[.3].median
assert [round(float(layer['kept'].float().mean()), 1) for layer in layers.values()][-1] == .1
assert largest < 1e-4 and len(levels) == 3
"""


def test_outputs_are_kept_small():
    """All cells were run, in their order and without an error."""
    assert NOTEBOOK.stat().st_size < 250_000
    assert [cell['execution_count'] for cell in CELLS] == list(range(1, len(CELLS) + 1))
    outputs = [output for cell in CELLS for output in cell['outputs']]
    assert not any(output['output_type'] == 'error' for output in outputs)
    assert sum('image/png' in output.get('data', {}) for output in outputs) == 2
    said = '\n'.join(''.join(output.get('text', ())) for output in outputs)
    assert not re.search(r'(?m)(^|\s)/\w+/', said), 'a path of the machine that ran it'


@pytest.mark.slow
def test_cells_run(tmp_path):
    """As a script, so that no Jupyter is needed; the last lines are this test's."""
    code = '\n'.join(''.join(cell['source']) for cell in CELLS) + CHECKS
    run = subprocess.run([sys.executable, '-c', code], cwd=tmp_path, capture_output=True,
                         text=True, env={**os.environ, 'PYTHONPATH': str(ROOT)})
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-3000:]
