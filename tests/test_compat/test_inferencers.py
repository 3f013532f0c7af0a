"""mmpretrain's inferencers in a process whose default scope is mmdet's."""

import subprocess
import sys
import textwrap

import pytest


@pytest.mark.parametrize('first', ['mmpretrain', 'mmext.registry'])
def test_pipeline_is_built_in_its_own_scope(root_dir, tmp_path, first):
    """Whichever was imported first; the scope of the process stays."""
    code = textwrap.dedent('''
        import importlib, sys
        importlib.import_module(sys.argv[1])
        import mmext.registry
        from mmengine.config import Config
        from mmengine.registry import DefaultScope, init_default_scope
        from mmpretrain import FeatureExtractor, ImageClassificationInferencer
        init_default_scope('mmdet')
        cfg = Config.fromfile(sys.argv[2])
        cfg.test_dataloader = cfg.val_dataloader
        for cls in (ImageClassificationInferencer, FeatureExtractor):
            steps = [type(step).__name__ for step in cls(cfg, False).pipeline.transforms]
            assert steps[-1] == 'PackInputs', steps
        assert DefaultScope.get_current_instance().scope_name == 'mmdet'
    ''')
    config = root_dir / 'configs' / 'quickstart' / 'digits_cls.py'
    run = subprocess.run([sys.executable, '-c', code, first, str(config)], cwd=tmp_path,
                         capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]


def test_mmpretrain_is_not_imported_for_it():
    """A finder a module, gone once it has been used; one line says what was changed."""
    code = textwrap.dedent('''
        import logging, sys
        logging.basicConfig(level=logging.INFO, format='%(name)s %(message)s')
        import mmext.compat, mmext.registry
        assert not {'mmpretrain', 'mmdet'} & set(sys.modules), 'imported'
        mmext.compat.setup()
        def waiting():
            return {finder.name for finder in sys.meta_path if 'mmext' in type(finder).__module__}
        assert 'mmpretrain.apis.base' in waiting()
        import mmpretrain.apis.base
        assert 'mmpretrain.apis.base' not in waiting()
    ''')
    run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    [line] = [line for line in run.stderr.splitlines() if line.startswith('mmext ')]
    assert "mmcv's ops by torchvision" in line and 'checkpoints' in line and 'inferencers' in line
