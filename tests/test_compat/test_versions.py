"""The version check: supported sets pass, others fail with the cure in the message."""

import importlib.metadata
import re
import subprocess
import sys
import textwrap

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from mmext.compat import versions

ONEDL = {'onedl-mmengine': '0.10.12', 'onedl-mmcv': '2.3.6', 'onedl-mmdetection': '3.5.1',
         'onedl-mmpretrain': '1.3.6'}
ORIGINAL = {'mmengine': '0.10.7', 'mmcv-lite': '2.1.0', 'mmdet': '3.3.0', 'mmpretrain': '1.2.0'}


@pytest.fixture
def environment(monkeypatch):

    def put(packages):

        def version(name):
            if name in packages:
                return packages[name]
            raise importlib.metadata.PackageNotFoundError(name)

        monkeypatch.setattr(importlib.metadata, 'version', version)

    return put


@pytest.mark.parametrize('packages', [ONEDL, ORIGINAL, {**ORIGINAL, 'torch': '2.6.0'}, {}])
def test_supported_sets(environment, packages, recwarn):
    environment(packages)
    versions.check()
    assert not recwarn


@pytest.mark.parametrize('name, version, cure', [
    ('onedl-mmcv', '2.2.0', 'onedl-mmcv>=2.3.6,<2.4'),
    ('onedl-mmdetection', '4.0.0', 'onedl-mmdetection>=3.5.1,<3.6'),
    ('torch', '2.5.1+cu121', 'torch>=2.6'),
    ('torchvision', '0.20.1', 'torchvision>=0.21'),
    ('timm', '0.9.16', 'timm>=1.0.26,<2'),
    ('timm', '2.0', 'timm>=1.0.26,<2'),
])
def test_unsupported_version_names_the_cure(environment, name, version, cure):
    environment({**ONEDL, name: version})
    with pytest.raises(ImportError, match=re.escape(f'{name} {version} is not supported by mmext. '
                                                    f'Install "{cure}"')):
        versions.check()


def bounds():
    """Every distribution of the onedl set and beside it, with its bounds."""
    return {**{name: span for name, *span in versions.FAMILIES['onedl'].values()},
            **{name: list(span) for name, span in versions.PLAIN.items()}}


def test_pip_gets_the_same_bounds(root_dir):
    tomllib = pytest.importorskip('tomllib')  # of Python 3.11
    project = tomllib.loads((root_dir / 'pyproject.toml').read_text())['project']
    asked = {r.name: r.specifier for r in map(Requirement, project['dependencies'])}
    for name, (low, high) in bounds().items():
        assert asked[name] == SpecifierSet(versions.span(low, high)), name
    python = project['requires-python']
    assert f'Python {python.replace(">=", "≥ ")}' in (
        root_dir / 'docs' / 'install.md').read_text()


def test_the_manual_states_the_bounds(root_dir):
    """Oldest and newest version of every package, both of which the bounds admit."""
    text = (root_dir / 'docs' / 'install.md').read_text()
    rows = {cells[0]: cells[1:] for line in text.splitlines() if line.startswith('|')
            if len(cells := [cell.strip(' `') for cell in line.strip('|').split('|')]) == 4}
    for name, (low, high) in bounds().items():
        allowed, oldest, newest = rows[name]
        assert allowed == versions.span(low, high)
        assert SpecifierSet(allowed).contains(newest) and SpecifierSet(allowed).contains(oldest)
        assert Version(oldest).release[:2] == Version(low).release[:2]
    assert rows['torch'][-1] == versions.TESTED_TORCH[-1]


@pytest.mark.parametrize('end', ['oldest', 'newest'])
def test_the_ends_of_the_bounds(environment, end, recwarn):
    last = {'onedl-mmengine': '0.10.99', 'onedl-mmcv': '2.3.99', 'onedl-mmdetection': '3.5.99',
            'onedl-mmpretrain': '1.3.99', 'timm': '1.99', 'torch': versions.TESTED_TORCH[-1]}
    environment({name: low for name, (low, _) in bounds().items()} if end == 'oldest' else last)
    versions.check()
    assert not recwarn


def test_mixture_of_families(environment):
    environment({**ONEDL, 'mmcv': '2.1.0'})
    with pytest.raises(ImportError, match=r'side by side.*mmcv 2\.1\.0.*onedl-mmcv 2\.3\.6'):
        versions.check()


def test_newer_torch_is_only_a_warning(environment):
    environment({**ONEDL, 'torch': '9.0.0'})
    with pytest.warns(UserWarning, match=r'torch 9\.0\.0 is newer'):
        versions.check()


def test_local_and_post_versions_of_torch_are_tested_versions(environment, recwarn):
    environment({**ONEDL, 'torch': '2.14.1+cu130'})
    versions.check()
    assert not recwarn


def test_setup_fails_at_import_of_the_registry():
    code = textwrap.dedent('''
        import importlib.metadata as m
        real = m.version
        m.version = lambda name: '2.0.0' if real(name) and 'mmcv' in name else real(name)
        import mmext.registry
    ''')
    run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert run.returncode == 1
    assert 'ImportError' in run.stderr and '2.0.0 is not supported by mmext' in run.stderr


def test_broken_transformers_is_avoided():
    code = textwrap.dedent('''
        import importlib.metadata as m, sys, types
        real = m.version
        m.version = lambda name: '5.24.0' if name == 'transformers' else real(name)
        import warnings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter('always')
            import mmext.registry
        assert any('transformers 5.24.0 breaks' in str(w.message) for w in caught)
        import mmpretrain.utils.dependency as d
        assert d.WITH_MULTIMODAL is False
        import mmpretrain.models
        assert 'mmpretrain.models.multimodal.blip' not in sys.modules
    ''')
    run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
