"""Packaging of mmext; configs, tools and the model index travel in the wheel as ``mmext/.mim``."""

import os
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
# what `mim` and `get_config('mmext::...')` read: name in mmext/.mim -> place in the checkout
MIM = {'configs': 'configs', 'tools': 'tools', 'model-index.yml': 'configs/model-index.yml'}


def version():
    scope = {}
    exec((ROOT / 'mmext' / '__init__.py').read_text().split('def ')[0], scope)
    return scope['__version__']


def copy(source, target):
    if source.is_dir():
        ignore = shutil.ignore_patterns('__pycache__', '*.pyc')
        shutil.copytree(source, target, ignore=ignore, dirs_exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)


class BuildPy(build_py):
    """Copies MIM into the wheel; an editable install gets links, so edits are seen at once."""

    def run(self):
        super().run()
        if getattr(self, 'editable_mode', False):
            target = ROOT / 'mmext' / '.mim'
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir()
            for name, place in MIM.items():
                os.symlink(os.path.join('..', '..', place), target / name)
            return
        target = Path(self.build_lib) / 'mmext' / '.mim'
        shutil.rmtree(target, ignore_errors=True)
        for name, place in MIM.items():
            copy(ROOT / place, target / name)


class Sdist(sdist):
    """Adds MIM and the license to the source archive."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        for name in ('configs', 'tools', 'LICENSE'):
            copy(ROOT / name, Path(base_dir) / name)


setup(
    name='mmext',
    version=version(),
    description='Linear white-box attention (DMSA) and bias-pruned attention as plugins for '
    'MMDetection and MMPretrain',
    long_description=(ROOT / 'README.md').read_text() if (ROOT / 'README.md').exists() else '',
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    python_requires='>=3.10',
    packages=find_packages(include=['mmext', 'mmext.*']),
    package_data={'mmext': ['zoo/*']},
    entry_points={'console_scripts': ['mmext = mmext.cli.main:main']},
    cmdclass={'build_py': BuildPy, 'sdist': Sdist},
    install_requires=[
        'torch>=2.6',
        'torchvision>=0.21',
        'timm>=1.0.26,<2',
        'onedl-mmengine>=0.10.12,<0.11',
        'onedl-mmcv>=2.3.6,<2.4',
        'onedl-mmdetection>=3.5.1,<3.6',
        'onedl-mmpretrain>=1.3.6,<1.4',
        'pycocotools>=2.0.8',
        'scikit-learn>=1.3',
        'scipy>=1.10',
        'matplotlib>=3.7',
    ],
    extras_require={
        'tests': ['pytest>=8', 'pytest-xdist>=3.5', 'hypothesis>=6', 'ruff>=0.6',
                  'scikit-image>=0.22'],
        'pruning': ['torch-pruning>=1.5'],
        'export': ['onnx>=1.16', 'onnxruntime>=1.18', 'onnxscript'],
        'log': ['tensorboard', 'wandb'],
    },
    classifiers=[
        'Development Status :: 3 - Alpha',
        'License :: OSI Approved :: Apache Software License',
        'Programming Language :: Python :: 3',
        'Topic :: Scientific/Engineering :: Artificial Intelligence',
    ],
    zip_safe=False,
)
