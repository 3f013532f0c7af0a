"""What pyproject.toml cannot say: configs, tools and the model index travel as ``mmext/.mim``."""

import os
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
# what `mim` and `get_config('mmext::...')` read: name in mmext/.mim -> place in the checkout
MIM = {'configs': 'configs', 'tools': 'tools', 'model-index.yml': 'configs/model-index.yml'}


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
    """Adds MIM to the source archive."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        for name in ('configs', 'tools'):
            copy(ROOT / name, Path(base_dir) / name)


setup(cmdclass={'build_py': BuildPy, 'sdist': Sdist})
