"""The one-command device check: finds errors, and runs where no OpenMMLab package is."""

import json
import subprocess
import sys

import pytest
import torch

from mmext.cli import benchmark_compare, gpu_check


@pytest.mark.parametrize('dtype', ['fp32', 'bf16', 'fp16'])
def test_operators_pass(dtype):
    checks = gpu_check.operator_checks('cpu', 37, dtype)
    assert len(checks) == 8
    assert all(check['ok'] for check in checks), checks


def test_wrong_values_and_gradients_are_found():
    x = torch.rand(5)
    right = gpu_check.compare('right', 'fp32', torch.exp, torch.exp, [x])
    value = gpu_check.compare('value', 'fp32', lambda x: x.exp() * 1.001, torch.exp, [x])
    gradient = gpu_check.compare(
        'gradient', 'fp32', lambda x: x.exp().detach() + x - x.detach(), torch.exp, [x])
    nan = gpu_check.compare('nan', 'fp32', lambda x: x.exp() / 0 * 0, torch.exp, [x])
    assert right['ok'] and not value['ok'] and not gradient['ok'] and not nan['ok']
    assert gradient['value'] < 1e-6 < gradient['gradient']


def test_training_steps_compare_all_layers():
    result = gpu_check.training_steps('cpu', size=32, batch_size=1, depth=1, repeat=1)
    assert set(result['rows']) == {
        'plain', 'bias', 'pruned 0.9,0.1 mask', 'pruned 0.9,0.1 gather', 'tssa naive', 'tssa',
        'dmsa'}
    assert result['rows']['plain']['fused']['speedup'] == 1.0
    both = {'tables': [result]}
    changes = benchmark_compare.compare(both, both)  # the form that benchmark.py writes
    assert len(changes) == 14 and {change.verdict for change in changes} == {'same'}


@pytest.mark.slow
def test_whole_script_without_openmmlab(root_dir, tmp_path):
    out = tmp_path / 'check.json'
    code = (
        'import sys, runpy\n'
        'for name in ("mmengine", "mmcv", "mmdet", "mmpretrain", "matplotlib", "scipy", '
        '"sklearn"):\n    sys.modules[name] = None\n'
        f'sys.argv = ["gpu_check.py", "--device", "cpu", "--json", {str(out)!r}]\n'
        f'runpy.run_path({str(root_dir / "tools/dev/gpu_check.py")!r}, run_name="__main__")\n')
    result = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    content = json.loads(out.read_text())
    assert len(content['checks']) == 36 and all(c['ok'] for c in content['checks'])
    assert [t['extent'] for t in content['tables']] == [197, 1025, [128, 128]]
    assert not content['skipped']
    result = subprocess.run(
        [sys.executable, root_dir / 'tools/analysis_tools/benchmark.py', 'compare', '--json', out,
         '--against', out], capture_output=True, text=True)
    assert result.returncode == 0 and ' 0 slower' in result.stdout, result.stderr
