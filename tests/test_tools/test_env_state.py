"""What pip is asked for, against stand-in sets of installed distributions."""

import importlib.util
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[2]
DEV = ROOT / 'tools' / 'dev'

spec = importlib.util.spec_from_file_location('env_state', DEV / 'env_state.py')
env_state = importlib.util.module_from_spec(spec)
spec.loader.exec_module(env_state)

REQUIRES = ['torch>=2.6', 'onedl-mmengine<0.11,>=0.10.12', 'timm<2,>=1.0.20',
            'pytest>=8; extra == "tests"']
COMPLETE = {'torch': '2.14.1+cpu', 'onedl-mmengine': '0.10.12', 'timm': '1.0.31', 'pytest': '9.0'}


class Installed:

    def __init__(self, version, url):
        self.version, self.requires, self.url = version, REQUIRES, url

    def read_text(self, name):
        return f'{{"url": "{self.url}"}}'


def calls(monkeypatch, others, extras=(), mmext='current', url=None):
    """pip's calls when `others` and, unless None, mmext are installed."""

    def version(name):
        if name not in others:
            raise metadata.PackageNotFoundError(name)
        return others[name]

    def distribution(name):
        if mmext is None:
            raise metadata.PackageNotFoundError(name)
        current = __import__('mmext').__version__
        return Installed(current if mmext == 'current' else mmext, url or ROOT.as_uri())

    monkeypatch.setattr(env_state.metadata, 'version', version)
    monkeypatch.setattr(env_state.metadata, 'distribution', distribution)
    return env_state.pip_calls(ROOT, list(extras))


def test_nothing_to_do_when_complete(monkeypatch):
    assert calls(monkeypatch, COMPLETE) == []
    assert calls(monkeypatch, COMPLETE, ['tests']) == []


@pytest.mark.parametrize('change', [
    {'mmext': None}, {'mmext': '0.0.1'}, {'url': 'file:///elsewhere'}])
def test_installs_when_this_checkout_is_not_the_installed_one(monkeypatch, change):
    assert calls(monkeypatch, COMPLETE, **change) == [['-e', str(ROOT)]]


def test_installs_what_an_extra_lacks(monkeypatch):
    without = {k: v for k, v in COMPLETE.items() if k != 'pytest'}
    assert calls(monkeypatch, without) == []
    assert calls(monkeypatch, without, ['tests']) == [['-e', f'{ROOT}[tests]']]


@pytest.mark.parametrize('package, version', [('torch', '2.5.1'), ('timm', '2.0')])
def test_installs_when_a_version_is_out_of_range(monkeypatch, package, version):
    assert calls(monkeypatch, {**COMPLETE, package: version}) == [['-e', str(ROOT)]]


def test_original_openmmlab_packages_are_never_mixed_with_their_twins(monkeypatch):
    originals = {'torch': '2.6.0', 'mmengine': '0.10.7', 'mmcv-lite': '2.1.0'}
    assert calls(monkeypatch, originals, mmext=None) == [['--no-deps', '-e', str(ROOT)]]
    assert calls(monkeypatch, originals) == [['timm<2,>=1.0.20']]
    assert calls(monkeypatch, {**originals, 'timm': '1.0.31'}) == []


@pytest.mark.parametrize('version', ['1.0', '1.9.9', '2.0.0', '2.6.0+cpu', '2.14.1', '10.0'])
@pytest.mark.parametrize('conditions', ['', '>=2.6', '<2', '<0.11,>=0.10.12', '==2.6.0', '!=1.0'])
def test_version_ranges_against_packaging(version, conditions):
    assert env_state.satisfies(version, conditions) == (version in SpecifierSet(conditions))


@pytest.mark.parametrize('args, code, text', [
    (['--help'], 0, 'usage: env_state.py'), ([], 2, 'root'),
    (['/nowhere'], 2, 'error: /nowhere is no checkout of mmext')])
def test_command_line(args, code, text):
    run = subprocess.run([sys.executable, DEV / 'env_state.py', *args], capture_output=True,
                         text=True)
    assert run.returncode == code and text in run.stdout + run.stderr
    assert 'Traceback' not in run.stderr


# ------------------------------------------------------------------------------- env.sh itself


def source_env(tmp_path, **env):
    return subprocess.run(
        ['/bin/bash', '-c', f'set -euo pipefail; source {DEV / "env.sh"}; find_python'],
        capture_output=True, text=True, cwd=tmp_path, env={'PATH': '/usr/bin:/bin', **env})


def fake_python(tmp_path, version_ok):
    """A `python` that answers the questions of env.sh as an old or a new one does."""
    path = tmp_path / 'bin' / 'python'
    path.parent.mkdir(exist_ok=True)
    path.write_text('#!/bin/sh\ncase "$*" in *version_info*) exit '
                    f'{int(not version_ok)};; --version) echo "Python 3.8.1";; esac\n')
    path.chmod(0o755)
    return path


def test_given_python_wins_and_active_environment_is_used(tmp_path):
    good = fake_python(tmp_path, True)
    assert source_env(tmp_path, PYTHON=str(good)).stdout.strip() == str(good)
    assert source_env(tmp_path, VIRTUAL_ENV=str(tmp_path)).stdout.strip() == str(good)


def test_old_or_missing_python_is_named(tmp_path):
    old = source_env(tmp_path, VIRTUAL_ENV=str(fake_python(tmp_path, False).parents[1]))
    assert old.returncode != 0 and 'Python 3.8.1' in old.stderr and '>= 3.10' in old.stderr
    gone = source_env(tmp_path, PYTHON=str(tmp_path / 'nowhere'))
    assert gone.returncode != 0 and 'nowhere' in gone.stderr
