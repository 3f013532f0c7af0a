"""The wheel: configs, tools and index inside, usable from an empty folder."""

import os
import shutil
import site
import subprocess
import sys
import sysconfig
import textwrap
import zipfile

import pytest


@pytest.fixture(scope='module')
def wheel(root_dir, tmp_path_factory):
    """A wheel built from a copy, so that the checkout stays as it is."""
    source = tmp_path_factory.mktemp('source') / 'mmext'
    source.mkdir()
    for name in ('setup.py', 'README.md', 'LICENSE'):
        shutil.copy2(root_dir / name, source)
    skip = shutil.ignore_patterns('__pycache__', '.mim')
    for name in ('mmext', 'configs', 'tools'):
        shutil.copytree(root_dir / name, source / name, ignore=skip)
    out = tmp_path_factory.mktemp('wheel')
    run = subprocess.run(
        [sys.executable, '-m', 'pip', 'wheel', '--no-deps', '--no-build-isolation', '-q', '-w',
         str(out), str(source)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    files = list(out.glob('mmext-*.whl'))
    assert len(files) == 1
    return files[0]


def test_wheel_is_pure_and_holds_everything(wheel, root_dir):
    assert wheel.name.endswith('-py3-none-any.whl')
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ('configs', 'tools'):
        for file in (root_dir / folder).rglob('*'):
            if file.is_file() and '__pycache__' not in file.parts:
                assert f'mmext/.mim/{file.relative_to(root_dir)}' in names, file
    for file in (root_dir / 'mmext').rglob('*.py'):
        if '.mim' not in file.parts:
            assert str(file.relative_to(root_dir)) in names
    assert not [n for n in names if n.startswith(('tests/', 'configs/', 'tools/'))]
    assert 'mmext/.mim/model-index.yml' in names
    assert any(n.endswith('LICENSE') for n in names)


@pytest.fixture(scope='module')
def installed(wheel, tmp_path_factory):
    """Python of a new environment that holds the wheel and sees this one's packages, not mmext."""
    folder = tmp_path_factory.mktemp('venv')
    subprocess.run([sys.executable, '-m', 'venv', '--without-pip', str(folder)], check=True)
    python = folder / 'bin' / 'python'
    purelib = subprocess.run(
        [python, '-c', 'import sysconfig; print(sysconfig.get_path("purelib"))'],
        capture_output=True, text=True, check=True).stdout.strip()
    zipfile.ZipFile(wheel).extractall(purelib)
    paths = dict.fromkeys([sysconfig.get_path('purelib'), sysconfig.get_path('platlib'),
                           *site.getsitepackages()])
    # A path line adds the folder but does not run its .pth files, so an editable mmext stays out.
    with open(os.path.join(purelib, 'outer.pth'), 'w') as file:
        file.write('\n'.join(paths))
    return python


def run(python, *args, cwd):
    env = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
    return subprocess.run([str(python), *args], cwd=cwd, env=env, capture_output=True, text=True)


def test_installed_configs_and_registry_from_an_empty_folder(installed, tmp_path):
    code = textwrap.dedent('''
        import mmext, os
        assert 'site-packages' in mmext.__file__
        assert '.mim' in os.listdir(os.path.dirname(mmext.__file__))
        import mmext.registry
        from mmengine.config import Config
        from mmengine.hub import get_config
        cfg = get_config('mmext::quickstart/digits_mask_rcnn.py')
        assert cfg.model.type == 'MaskRCNN'
        open('mine.py', 'w').write("_base_ = 'mmext::quickstart/digits_cls.py'")
        assert Config.fromfile('mine.py').model.type == 'ImageClassifier'
        from mmengine.registry import MODELS
        from mmpretrain.registry import MODELS as CLS
        assert MODELS.get('mmext.SimpleFeaturePyramid').__module__.startswith('mmext.')
        assert CLS.get('mmext.BiasPrunedViT') is MODELS.get('mmext.BiasPrunedViT')
    ''')
    result = run(installed, '-c', code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize('order', [('cls', 'det'), ('det', 'cls')])
def test_classifier_and_detector_in_one_process(installed, tmp_path, order):
    """Either order, no scope warning, no registry error; only `mmext.registry` is imported."""
    code = textwrap.dedent('''
        import logging, sys, warnings
        import mmext.registry
        from mmengine.hub import get_config
        from mmengine.registry import MODELS, init_default_scope
        for task in sys.argv[1:]:
            name = dict(cls='digits_cls', det='digits_mask_rcnn')[task]
            cfg = get_config(f'mmext::quickstart/{name}.py')
            cfg.model.backbone.init_cfg = None
            init_default_scope(cfg.default_scope)
            print(type(MODELS.build(cfg.model)).__name__)
    ''')
    result = run(installed, '-c', code, *order, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    names = dict(cls='ImageClassifier', det='MaskRCNN')
    assert all(names[o] in result.stdout.split() for o in order)
    text = result.stdout + result.stderr
    assert 'Failed to search registry' not in text and 'not in the' not in text


def test_trains_from_the_installed_path(installed, tmp_path):
    mim = run(installed, '-c', 'import mmext, os; print(os.path.dirname(mmext.__file__))',
              cwd=tmp_path).stdout.strip() + '/.mim'
    data = run(installed, f'{mim}/tools/dataset_converters/digits.py', '--out', 'digits',
               '--train', '8', '--val', '4', cwd=tmp_path)
    assert data.returncode == 0, data.stderr
    result = run(
        installed, f'{mim}/tools/train.py', f'{mim}/configs/quickstart/digits_cls.py',
        '--cfg-options', 'data_root=digits/classification', 'train_cfg.max_epochs=1', cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-3000:]
    assert (tmp_path / 'work_dirs' / 'digits_cls' / 'last_checkpoint').exists()


def test_import_is_light():
    """`import mmext` loads neither torch nor any OpenMMLab package."""
    code = ('import sys, mmext; print([m for m in sys.modules if m.split(".")[0] in '
            '("torch", "timm", "mmengine", "mmcv", "mmdet", "mmpretrain", "numpy")])')
    result = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert result.stdout.strip() == '[]', result.stderr
