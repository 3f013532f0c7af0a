"""docs/papers.md: every command of an analysis tool runs on small data.

That every table and figure has its line: tests/test_docs.py.
"""

import importlib
import re
import shlex
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from mmext.models import DMST, BiasPrunedViT

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / 'docs' / 'papers.md').read_text()
# train.py and test.py: tests/test_tools/test_train_and_test.py
COMMANDS = sorted({command for command in re.findall(r'`(python tools/[^`]+)`', PAGE)
                   if 'analysis_tools' in command})
CLASSIFIER = """
default_scope = 'mmpretrain'
model = dict(
    type='ImageClassifier',
    data_preprocessor=dict(mean=[120.] * 3, std=[60.] * 3, to_rgb=True, num_classes=3),
    backbone=dict({backbone}),
    head=dict(type='LinearClsHead', num_classes=3, in_channels=32))
"""
VIT = "type='mmext.BiasPrunedViT', arch='tiny-test', img_size=64"
BODY = "type='mmext.DMST', arch=dict(embed_dim=32, depth=3, num_heads=4)"
SMALLER = {  # what makes a run short; later options win
    'benchmark': ['--warmup', '0', '--repeat', '1', '--no-memory', '--device', 'cpu'],
    'get_flops': [],
    'structured_pruning': [],
}
FIGURE = ['--device', 'cpu', '--num-images', '2', '--shape', '64']


@pytest.fixture(scope='module')
def place(tmp_path_factory):
    """Configs, checkpoints and images that stand in for the words of the page."""
    folder = tmp_path_factory.mktemp('papers')
    torch.manual_seed(0)
    bodies = {'vit': (VIT, BiasPrunedViT('tiny-test', img_size=64)),
              'dmst': (BODY, DMST(dict(embed_dim=32, depth=3, num_heads=4)))}
    for name, (text, model) in bodies.items():
        (folder / f'{name}.py').write_text(CLASSIFIER.format(backbone=text))
        state = {f'backbone.{key}': value for key, value in model.state_dict().items()}
        head = {'head.fc.weight': torch.randn(3, 32), 'head.fc.bias': torch.zeros(3)}
        torch.save({'state_dict': state | head}, folder / f'{name}.pth')
    (folder / 'images').mkdir()
    for i in range(2):
        image = np.random.default_rng(i).integers(0, 255, (70, 90, 3), dtype=np.uint8)
        cv2.imwrite(str(folder / 'images' / f'{i}.png'), image)
    return folder


def test_there_are_commands():
    assert len(COMMANDS) > 15


@pytest.mark.slow
@pytest.mark.parametrize('command', COMMANDS)
def test_the_command_runs(command, place, tmp_path, monkeypatch):
    tool = re.search(r'analysis_tools/(\w+)\.py', command)[1]
    name = 'dmst' if tool in ('coding_rate', 'membership_maps') else 'vit'
    if tool == 'structured_pruning':
        pytest.importorskip('torch_pruning')
        import timm
        torch.save(timm.create_model('deit_small_patch16_224').state_dict(), tmp_path / 'file.pth')
    words = {'CONFIG': f'{name}.py', 'CKPT': f'{name}.pth', 'IMAGES': 'images',
             'IMAGE': 'images/0.png'}
    args = [re.sub('CONFIG|CKPT|IMAGES|IMAGE', lambda found: str(place / words[found[0]]), word)
            for word in shlex.split(command)[2:]]
    args = [{'FILE': str(tmp_path / 'file.pth'), 'OUT.pth': str(tmp_path / 'out.pth'),
             'layer.png': str(tmp_path / 'layer.png')}.get(word, word) for word in args]
    if tool == 'benchmark':
        args += SMALLER[tool]
        args += ['--tokens', '64', '--dim', '32', '--heads', '2'] if 'layer' in args else []
        if 'detector' in args:
            config = ROOT / 'configs/vitdet/mask-rcnn_deit-ti_sfp_lsj-100e_coco.py'
            cut = args.index('--checkpoint')
            args = [str(config) if word.endswith('vit.py') else word
                    for word in [*args[:cut], *args[cut + 2:]]]
        args += ['--arch', 'deit-tiny', '--shape', '64']
    elif tool not in SMALLER:
        args += [*FIGURE, '--out', str(tmp_path / 'out')]
        if tool == 'keep_ratio_sweep':
            args += ['--repeat', '1', '--images', str(place / 'images')]
        if '--flop-shape' in args:
            args += ['--flop-shape', '96']
    monkeypatch.syspath_prepend(str(ROOT / 'tools' / 'analysis_tools'))
    importlib.import_module(tool).main(args)
    figures = list(tmp_path.rglob('*.png'))
    assert tool in SMALLER or (figures and all(cv2.imread(str(f)).std() > 5 for f in figures))
