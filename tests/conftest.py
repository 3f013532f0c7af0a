"""Fixtures shared by all tests."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


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


@pytest.fixture(autouse=True)
def own_environment():
    """The command line tools, called in this process, forbid code in checkpoints for good."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
