"""The wheel: configs, tools and index inside, usable from an empty folder."""

import email
import os
import re
import shutil
import site
import subprocess
import sys
import sysconfig
import textwrap
import zipfile

import pytest
from PIL import Image

import mmext


@pytest.fixture(scope='module')
def wheel(root_dir, tmp_path_factory):
    """A wheel built from a copy, so that the checkout stays as it is."""
    source = tmp_path_factory.mktemp('source') / 'mmext'
    source.mkdir()
    for name in ('setup.py', 'pyproject.toml', 'README.md', 'LICENSE'):
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
    assert sum(n.startswith('mmext/zoo/') and n.endswith('.pth') for n in names) == 2
    assert any(n.endswith('LICENSE') for n in names)


def test_metadata(wheel):
    """What an index shows and pip asks, read from the wheel itself."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [n for n in archive.namelist() if n.endswith('.dist-info/METADATA')]
        meta = email.message_from_string(archive.read(name).decode())
        entry = archive.read(name.replace('METADATA', 'entry_points.txt')).decode()
    assert meta['Name'] == 'mmext' and meta['Version'] == mmext.__version__
    assert meta['License-Expression'] == 'Apache-2.0' and meta['Requires-Python'] == '>=3.10'
    assert set(meta.get_all('Provides-Extra')) == {
        'tests', 'pruning', 'export', 'log', 'panoptic', 'convert'}
    plain = [line for line in meta.get_all('Requires-Dist') if 'extra ==' not in line]
    assert {'torch', 'timm', 'onedl-mmengine'} <= {re.match(r'[\w-]+', line)[0] for line in plain}
    assert '![predictions' in meta.get_payload() and 'mmext = mmext.cli.main:main' in entry


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


def run(python, *args, cwd, **variables):
    env = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'} | variables
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


def test_predicts_right_after_installation(installed, wheel, tmp_path):
    """The console command is declared; a trained model works offline, with nothing on the PATH."""
    assert b'mmext = mmext.cli.main:main' in b''.join(
        zipfile.ZipFile(wheel).read(n) for n in zipfile.ZipFile(wheel).namelist()
        if n.endswith('entry_points.txt'))
    Image.new('RGB', (90, 60), 'white').save(tmp_path / 'white.png')
    result = run(installed, '-m', 'mmext', 'predict', '--model', 'digits', 'white.png',
                 cwd=tmp_path, PATH=str(tmp_path))
    assert result.returncode == 0 and '1 of 1 images' in result.stdout, result.stderr[-3000:]
    assert (tmp_path / 'outputs' / 'vis' / 'white.png').exists()


def test_every_config_in_the_wheel_resolves(installed, tmp_path):
    """By name, with all that it inherits; the index names files that are there."""
    code = textwrap.dedent('''
        import glob, os, modelindex, mmext
        from mmengine.config import Config
        mim = os.path.join(os.path.dirname(mmext.__file__), '.mim')
        found = glob.glob(f'{mim}/configs/**/*.py', recursive=True)
        files = [file for file in found if '_base_' not in file]
        for file in files:
            assert Config.fromfile(file).model
        models = modelindex.load(f'{mim}/model-index.yml').models
        assert len(models) == len(files) > 100, (len(models), len(files))
        for model in models:
            assert os.path.isfile(os.path.join(mim, model.config)), model.config
    ''')
    result = run(installed, '-c', code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-3000:]


SCOPE_TROUBLE = re.compile(
    'Failed to search registry|Failed to import|is not in the|will force set the current|'
    'modules will not be registered')


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
    assert not SCOPE_TROUBLE.search(result.stdout + result.stderr)


@pytest.fixture(scope='module')
def trained(installed, tmp_path_factory):
    """A folder in which the installed tools trained both tasks for a moment, without a compiler:
    nothing is on the PATH."""
    folder = tmp_path_factory.mktemp('empty')
    where = run(installed, '-c', 'import mmext, os; print(os.path.dirname(mmext.__file__))',
                cwd=folder)
    mim = where.stdout.strip() + '/.mim'
    commands = [
        ['tools/dataset_converters/digits.py', '--out', 'digits', '--train', '8', '--val', '4'],
        ['tools/train.py', f'{mim}/configs/quickstart/digits_cls.py', '--cfg-options',
         'data_root=digits/classification', 'train_cfg.max_epochs=1',
         'train_dataloader.dataset.indices=64'],
        ['tools/train.py', f'{mim}/configs/quickstart/digits_mask_rcnn.py', '--cfg-options',
         'data_root=digits/detection', 'train_cfg.max_iters=2', 'train_cfg.val_interval=2',
         'train_dataloader.batch_size=2', 'default_hooks.checkpoint.interval=2',
         'model.backbone.init_cfg.checkpoint=work_dirs/digits_cls/epoch_1.pth']]
    for tool, *args in commands:
        result = run(installed, f'{mim}/{tool}', *args, cwd=folder, PATH=str(folder))
        assert result.returncode == 0, result.stderr[-3000:]
        assert not SCOPE_TROUBLE.search(result.stdout + result.stderr)
    return folder, mim


def test_trains_from_the_installed_path(trained):
    folder, _ = trained
    for name in ('digits_cls', 'digits_mask_rcnn'):
        assert (folder / 'work_dirs' / name / 'last_checkpoint').exists()


@pytest.mark.parametrize('order', ['cls det cls', 'det cls det'])
def test_both_inferencers_in_one_process(installed, trained, order):
    """With checkpoints as training leaves them, from the folder of the training."""
    folder, mim = trained
    code = textwrap.dedent('''
        import sys
        import mmext.registry
        from mmengine.config import Config
        mim, image, *order = sys.argv[1:]

        def cls():
            from mmpretrain import ImageClassificationInferencer
            cfg = Config.fromfile(f'{mim}/configs/quickstart/digits_cls.py')
            cfg.test_dataloader = cfg.val_dataloader
            infer = ImageClassificationInferencer(cfg, 'work_dirs/digits_cls/epoch_1.pth')
            print('\\nfound cls', infer(image)[0]['pred_class'])

        def det():
            from mmdet.apis import DetInferencer
            cfg = Config.fromfile(f'{mim}/configs/quickstart/digits_mask_rcnn.py')
            cfg.visualizer = dict(type='DetLocalVisualizer')
            infer = DetInferencer(
                cfg, 'work_dirs/digits_mask_rcnn/iter_2.pth', show_progress=False)
            print('\\nfound det', len(infer(image)['predictions'][0]['scores']))

        for name in order:
            dict(cls=cls, det=det)[name]()
    ''')
    image = next((folder / 'digits' / 'detection' / 'val').glob('*.png'))
    result = run(installed, '-c', code, mim, str(image), *order.split(), cwd=folder,
                 PATH=str(folder))
    assert result.returncode == 0, result.stderr[-3000:]
    assert re.findall(r'^found (cls|det) .+$', result.stdout, re.M) == order.split()
    assert not SCOPE_TROUBLE.search(result.stdout + result.stderr), result.stderr
    assert 'do not match exactly' not in result.stdout + result.stderr


def test_import_is_light():
    """`import mmext` loads neither torch nor any OpenMMLab package."""
    code = ('import sys, mmext; print([m for m in sys.modules if m.split(".")[0] in '
            '("torch", "timm", "mmengine", "mmcv", "mmdet", "mmpretrain", "numpy")])')
    result = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert result.stdout.strip() == '[]', result.stderr
