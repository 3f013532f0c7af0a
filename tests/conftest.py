"""Fixtures shared by all tests."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
DEVICES = ['cpu', *(['cuda'] if torch.cuda.is_available() else [])]


@pytest.fixture(scope='session')
def root_dir() -> Path:
    return ROOT


@pytest.fixture(scope='session')
def shared_dir() -> Path:
    """Folder of test data kept beside the checkout; never part of the project."""
    path = ROOT.parent / 'shared'
    if not (path / 'data').is_dir():
        pytest.skip(f'test data folder {path} is absent')
    return path


@pytest.fixture(scope='session')
def digits(tmp_path_factory) -> Path:
    """A few of the quickstart's data, to be read only: folders classification and detection."""
    out = tmp_path_factory.mktemp('data') / 'digits'
    subprocess.run(
        [sys.executable, ROOT / 'tools' / 'dataset_converters' / 'digits.py', '--out', out,
         '--train', '12', '--val', '6', '--cls-copies', '1'], check=True, capture_output=True)
    return out


@pytest.fixture(scope='session')
def load_tool():
    """Function that imports a tool by its path below tools/, without the .py."""
    def load(path: str):
        name = path.replace('/', '_') + '_tool'
        spec = importlib.util.spec_from_file_location(name, ROOT / 'tools' / f'{path}.py')
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    return load


@pytest.fixture(autouse=True)
def own_environment():
    """The command line tools, called in this process, forbid code in checkpoints for good."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def clean_scope():
    """Afterwards no default scope is left to the tests that follow."""
    from mmengine.registry import DefaultScope
    yield
    DefaultScope._instance_dict.clear()


@pytest.fixture
def mmpretrain_scope(clean_scope):
    """The default scope of classifiers, for one test."""
    from mmengine.registry import init_default_scope
    init_default_scope('mmpretrain')


@pytest.fixture(scope='module', params=DEVICES)
def device(request):
    """Runs a test on the CPU and, where there is one, on a GPU: tensors are made there."""
    before = torch.get_default_device()
    torch.set_default_device(request.param)
    yield torch.device(request.param)
    torch.set_default_device(before)
