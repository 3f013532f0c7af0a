"""The console command: every tool by name, help without torch, the model zoo as a table."""

import hashlib
import subprocess
import sys

import pytest
from mmengine.config import Config

from mmext.cli.main import commands, help_text
from mmext.cli.model_index import read_index
from mmext.cli.package_files import TRAINED, shipped, trained_model


def call(*args, cwd=None):
    return subprocess.run([sys.executable, '-m', 'mmext', *args], capture_output=True, text=True,
                          cwd=cwd)


def test_help_lists_every_tool_and_imports_nothing_heavy(root_dir):
    code = ('import sys; from mmext.cli.main import main; main(["--help"]); '
            'print([m for m in ("torch", "numpy", "mmengine") if m in sys.modules])')
    run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert run.stdout.endswith('[]\n'), run.stdout + run.stderr
    files = {file.resolve() for file in commands().values()}
    assert files == {file.resolve() for file in (root_dir / 'tools').rglob('*.py')
                     if file.parent.name != 'dev'}
    for name in ('train', 'test', 'predict', 'check', 'flops', 'benchmark', 'export', 'models'):
        assert f'\n  {name} ' in run.stdout
    assert all(len(line) < 120 for line in help_text().splitlines())


def test_a_command_is_its_tool(root_dir, tmp_path):
    """Same options, same exit status, from any folder; the command's name in the messages."""
    run = call('models', 'digits_cls', cwd=root_dir)
    assert run.returncode == 0 and 'mmext::quickstart/digits_cls.py' in run.stdout, run.stderr
    run = call('models', 'no such config', cwd=root_dir)
    assert run.returncode == 1 and "'no such config'" in run.stderr
    run = call('train', '--help', cwd=root_dir)
    assert run.returncode == 0 and run.stdout.startswith('usage: mmext train ')
    plain = subprocess.run([sys.executable, root_dir / 'tools' / 'train.py', '--help'],
                           capture_output=True, text=True)
    assert ' '.join(run.stdout.split()).replace('mmext train', 'train.py') == ' '.join(
        plain.stdout.split())


@pytest.mark.parametrize('args, message', [
    (['trian'], "no command 'trian'. Did you mean 'train'?"), (['xyz'], 'mmext --help')])
def test_unknown_command(args, message, root_dir):
    run = call(*args, cwd=root_dir)
    assert run.returncode == 1 and message in run.stderr


def test_zoo_says_what_the_configs_train():
    """Task by the type of the model, for every config."""
    tasks = {'ImageClassifier': 'Image Classification', 'MaskRCNN': 'Instance Segmentation',
             'CascadeRCNN': 'Instance Segmentation', 'FasterRCNN': 'Object Detection',
             'PanopticFPN': 'Panoptic Segmentation'}
    entries = read_index()
    assert len(entries) > 100 and len({one['config'] for one in entries}) == len(entries)
    for entry in entries:
        file = shipped('configs') / entry['config'].removeprefix('mmext::')
        kind = Config.fromfile(file).model.type
        if kind in tasks:
            assert entry['task'] == tasks[kind], entry['config']
    assert {one['weights'] for one in entries} == {*TRAINED, None}


def test_trained_models_are_there():
    total = 0
    for name in TRAINED:
        config, weights = trained_model(name)
        assert Config.fromfile(config).model
        with open(weights, 'rb') as file:
            content = file.read()
        assert hashlib.sha256(content).hexdigest()[:8] in weights
        total += len(content)
    assert total < 5e6
    with pytest.raises(ValueError, match="'digits', 'digits-cls'"):
        trained_model('resnet')
