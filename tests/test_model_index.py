"""The model zoo: config files, tables of the READMEs and the index, each against the others."""

import hashlib
import re
from pathlib import Path

import modelindex
import pytest

from mmext.cli.package_files import TRAINED

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = sorted(path for path in (ROOT / 'configs').iterdir()
                 if path.is_dir() and path.name != '_base_')


def config_files(folder):
    return sorted(str(path.relative_to(ROOT)) for path in folder.rglob('*.py'))


@pytest.mark.parametrize('folder', FOLDERS, ids=lambda p: p.name)
def test_readme_links_every_config_once(folder):
    links = re.findall(r'\[([^\]]+)\]\(([\w./-]+\.py)\)', (folder / 'README.md').read_text())
    own = [(name, folder / target) for name, target in links if not target.startswith('..')]
    assert sorted(str(path.relative_to(ROOT)) for _, path in own) == config_files(folder)
    for name, path in own:
        assert name.removesuffix('.py') == path.stem


@pytest.fixture(scope='module')
def index(tmp_path_factory):
    """Read by the package that mmpretrain reads indices with, laid out as in the wheel."""
    mim = tmp_path_factory.mktemp('mim')
    (mim / 'configs').symlink_to(ROOT / 'configs')
    (mim / 'model-index.yml').symlink_to(ROOT / 'configs' / 'model-index.yml')
    return modelindex.load(str(mim / 'model-index.yml'))


def test_index_lists_every_config_once(index):
    assert sorted(model.config for model in index.models) == [
        path for folder in FOLDERS for path in config_files(folder)]
    assert len({model.name for model in index.models}) == len(index.models)


def test_entries_have_the_forms_of_the_field(index):
    assert len(index.collections) == len(FOLDERS)
    collections = {collection.name: collection for collection in index.collections}
    for model in index.models:
        assert model.name == Path(model.config).stem
        readme = collections[model.in_collection].readme
        assert model.config.startswith(readme.removesuffix('README.md'))
        assert (ROOT / readme).is_file()
        assert model.metadata.data['Training Data'], model.name
        for key in ('FLOPs', 'Parameters'):
            assert model.metadata.data.get(key, 1) > 0, model.name
        for result in model.results or ():
            assert result.task and result.dataset and result.metrics, model.name


def test_weights_are_shipped_or_said_to_be_absent(index):
    """Those of `mmext predict --model` by the hash in their names, with results; no others."""
    shipped = {f'configs/{config}' for config in TRAINED.values()}
    for model in index.models:
        if model.config not in shipped:
            assert model.weights is None, model.name
            continue
        path = ROOT / model.weights
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        assert path.name == f'{model.name}-{digest[:8]}.pth' and model.results
    for folder in FOLDERS:
        head = (folder / 'metafile.yml').read_text().split('Collections:')[0]
        assert 'weights are not published' in head.replace('\n# ', ' '), folder.name
