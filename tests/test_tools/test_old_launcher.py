"""Launchers that pass the local rank as an argument, in either spelling."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize('name', ['train', 'test'])
@pytest.mark.parametrize('argument', [
    ['--local_rank=3'], ['--local-rank=3'], ['--local_rank', '3'], ['--local-rank', '3'], []])
def test_both_spellings(load_tool, monkeypatch, name, argument):
    module = load_tool(name)
    monkeypatch.delenv('LOCAL_RANK', raising=False)
    files = ['config.py'] if name == 'train' else ['config.py', 'a.pth']
    monkeypatch.setattr(sys, 'argv', [f'{name}.py', *argument, *files, '--launcher', 'pytorch'])
    args = module.parse_args()
    assert args.config == 'config.py' and args.launcher == 'pytorch'
    assert os.environ['LOCAL_RANK'] == ('3' if argument else '0')


def test_environment_of_torchrun_comes_first(load_tool, monkeypatch):
    module = load_tool('train')
    monkeypatch.setenv('LOCAL_RANK', '1')
    monkeypatch.setattr(sys, 'argv', ['train.py', 'config.py', '--launcher', 'pytorch'])
    module.parse_args()
    assert os.environ['LOCAL_RANK'] == '1'


def test_torch_distributed_launch(root_dir, tmp_path):
    """The launcher from before torchrun hands --local-rank to the script."""
    command = [sys.executable, '-m', 'torch.distributed.launch', '--nproc-per-node=1',
               '--standalone', str(root_dir / 'tools' / 'train.py'), 'missing.py',
               '--launcher', 'pytorch']
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    # beyond its arguments: it looks for the config
    assert "config 'missing.py' does not exist" in run.stderr, run.stderr[-2000:]
    assert 'unrecognized arguments' not in run.stderr
