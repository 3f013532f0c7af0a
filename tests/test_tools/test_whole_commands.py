"""Commands as a user types them: what they do without a visualizer, and what they refuse."""

import json
import subprocess
import sys

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope, init_default_scope

import mmext.registry  # noqa: F401  (before mmdet)


@pytest.fixture
def command(root_dir, tmp_path):
    """Runs a tool in an empty folder; gives its exit status, output and errors."""

    def call(tool, *args):
        done = subprocess.run(
            [sys.executable, str(root_dir / 'tools' / tool), *map(str, args)], cwd=tmp_path,
            capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    return call


@pytest.fixture
def configs(root_dir):
    return root_dir / 'configs' / 'quickstart'


def refused(result):
    """The one line that a refusing command prints."""
    code, _, err = result
    lines = err.strip().splitlines()
    assert code == 1 and len(lines) == 1, err
    return lines[0]


@pytest.mark.parametrize('name, drawn, written', [
    ('digits_cls', 'vis/image.png', 'predictions.json'),
    ('digits_mask_rcnn', 'vis/image.png', 'results.json')])
def test_demo_with_a_config_without_visualizer(command, configs, tmp_path, name, drawn, written):
    config = configs / f'{name}.py'
    cfg = Config.fromfile(config)
    cfg.pop('visualizer', None)
    config = tmp_path / 'without.py'
    cfg.dump(config)
    cfg.model.backbone.init_cfg = None
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.model)
    DefaultScope._instance_dict.clear()
    meta = dict(dataset_meta=dict(classes=list('0123456789')))
    torch.save(dict(state_dict=model.state_dict(), meta=meta), tmp_path / 'model.pth')
    noise = np.random.default_rng(0).integers(0, 256, (48, 48, 3), dtype=np.uint8)
    cv2.imwrite(str(tmp_path / 'image.png'), noise)
    code, out, err = command('demo.py', 'image.png', config, 'model.pth', '--out-dir', 'out')
    assert code == 0 and '1 of 1 images' in out, err
    assert cv2.imread(str(tmp_path / 'out' / drawn)).std() > 0
    assert json.loads((tmp_path / 'out' / written).read_text())


def test_a_classifier_has_no_augmented_image_to_draw(command, configs, tmp_path):
    line = refused(command('test.py', configs / 'digits_cls.py', 'model.pth', '--tta',
                           '--show-dir', 'shown'))
    assert '--tta and --show-dir exclude each other' in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('wrapper', ['ApexOptimWrapper', 'DeepSpeedOptimWrapper'])
def test_amp_replaces_no_other_wrapper(command, configs, tmp_path, wrapper):
    line = refused(command('train.py', configs / 'digits_cls.py', '--amp', '--cfg-options',
                           f'optim_wrapper.type={wrapper}'))
    assert f"optim_wrapper.type = '{wrapper}'" in line and 'leave --amp out' in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('tool, args, message', [
    ('analysis_tools/get_flops.py', '{digits_mask_rcnn} --shapes-only', 'add --backbone-only'),
    ('analysis_tools/benchmark.py', 'layer --device gpu', "device 'gpu' cannot be used"),
    ('analysis_tools/benchmark.py', 'layer --tokens 16 --only best', "--only 'best': on this"),
    ('analysis_tools/benchmark.py', 'detector --config {digits_mask_rcn}', 'Did you mean'),
    ('dev/gpu_check.py', '--device gpu', "device 'gpu' cannot be used")])
def test_bad_values_end_in_one_line(command, configs, tmp_path, tool, args, message):
    names = ('digits_cls', 'digits_mask_rcnn', 'digits_mask_rcn')
    args = args.format(**{name: configs / f'{name}.py' for name in names}).split()
    line = refused(command(tool, *args))
    assert line.startswith('error: ') and message in line
    assert not list(tmp_path.iterdir())
