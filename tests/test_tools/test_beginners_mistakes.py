"""What a beginner gets wrong, by tool: exit status and one last line that says it, no traceback.

All tools run in this process, in an empty folder with the files of ``folder``.
"""

import importlib.util
import shlex
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

TOOLS = Path(__file__).resolve().parents[2] / 'tools'
CLASSIFIER = """
default_scope = 'mmpretrain'
data_preprocessor = dict(num_classes=3)
model = dict(
    type='ImageClassifier',
    backbone=dict(type='mmext.BiasPrunedViT', arch='tiny-test', img_size=64),
    head=dict(type='LinearClsHead', num_classes=3, in_channels=32, loss=dict(
        type='CrossEntropyLoss')))
"""
ANY_CONFIG = [  # of every tool that takes a config first: words, what the last line says
    ('none.py', 'none.py'), ('clss.py', "Did you mean 'cls.py'"), ('folder', 'folder'),
    ('text.pth', 'text.pth'), ('broken.py', 'broken.py'), ('scopeless.py', 'default_scope'),
    ('cls.py --cfg-options model', 'KEY=VALUE'), ('cls.py --nothing', '--nothing'),
    ('cls.py --cfg-options model.backbone.arch.deep=1', '--cfg-options'),
]
CHECKPOINT = [('cls.py none.pth', 'none.pth'), ('cls.py folder', 'folder'),
              ('cls.py text.pth', 'text.pth'), ('cls.py other.pth', 'other.pth')]
FIGURE = [
    *ANY_CONFIG, *[(f'{words} --images image.png', said) for words, said in CHECKPOINT],
    ('cls.py', 'give --images'), ('cls.py --images none', 'none does not exist'),
    ('cls.py --images folder', 'no images in folder'), ('cls.py --shape 1 2 3', 'one or two'),
    ('cls.py --shape x', 'invalid int'), ('cls.py --shape 0', 'positive'),
    ('cls.py --images image.png --device gpu', "device 'gpu'"),
    ('cls.py --images image.png --layers 7', '7'), ('cls.py --batch-size 0', '--batch-size'),
    ('cls.py --num-images 0', '--num-images'), ('', 'required'),
    ('cls.py --images text.png', 'text.png'),
]
BIASED = [*FIGURE, ('cls.py --images image.png --out file/x', 'file')]
RATIO = [('cls.py --keep-ratio 2', "'2' is no keep ratio"), ('cls.py --keep-ratio half', 'half'),
         ('cls.py --keep-ratio 0.9-0.1', 'no keep ratio'), ('cls.py --keep-ratio', 'argument')]
MISTAKES = {
    'analysis_tools/attention_maps': [*BIASED, ('cls.py --heads x', 'invalid int'), (
        'cls.py --images image.png --heads 9', 'the model has 2 heads')],
    'analysis_tools/bias_correlation': [
        *BIASED, *RATIO, ('cls.py --keep-ratio 0.9,0.1', 'one number')],
    'analysis_tools/bias_decomposition': [*BIASED, *RATIO, (
        'cls.py --images image.png --keep-ratio 0.9,0.1,0.2', '2 layers')],
    'analysis_tools/keep_ratio_sweep': [*BIASED, *RATIO, (
        'cls.py --images image.png --budget-gflops 1e-9', 'budget')],
    'analysis_tools/oracle_gap': [*BIASED, *RATIO],
    'analysis_tools/coding_rate': [*FIGURE, ('cls.py --images image.png', 'no membership')],
    'analysis_tools/membership_maps': [*FIGURE, ('cls.py --images image.png', 'no membership')],
    'analysis_tools/get_flops': [
        *ANY_CONFIG, *RATIO, ('cls.py --shape 1 2 3', 'one or two'), ('cls.py --shape 0', 'posi'),
        ('cls.py --device gpu', "device 'gpu'"), ('cls.py --json file/x.json', 'file'),
        ('cls.py --json folder', 'folder'), ('', 'required')],
    'analysis_tools/benchmark': [
        ('', 'required'), ('layers', 'invalid choice'), ('layer --device gpu', "device 'gpu'"),
        ('layer --keep-ratio 2', 'no keep ratio'), ('layer --shape a', 'invalid int'),
        ('layer --batch-size 0', 'batch-size'), ('detector --config none.py', 'none.py'),
        ('layer --keep-ratio 0.9,0.1', 'several layers'), ('detector', '--config'),
        ('detector --config clss.py', 'Did you mean'), ('layer --dtype fp8', 'invalid choice'),
        ('layer --tokens 4 --repeat 1 --only plain --json file/x', 'file'),
        ('layer --tokens many', 'many')],
    'analysis_tools/structured_pruning': [
        ('', 'required'), ('deit_small_patch16_224', '--out'),
        ('deit_smal --out a.pth', 'deit_smal'),
        ('resnet18 --out a.pth', 'only VisionTransformers'), ('deit_tiny_patch16_224 --out a.pth '
         '--checkpoint none.pth', 'none.pth'), ('deit_tiny_patch16_224 --out a.pth --checkpoint '
         'text.pth', 'text.pth'),
        ('deit_tiny_patch16_224 --out a.pth --checkpoint folder', 'folder'),
        ('deit_tiny_patch16_224 --out a.pth --checkpoint other.pth', 'not a ViT'),
        ('deit_tiny_patch16_224 --out file/a.pth', 'file'),
        ('deit_tiny_patch16_224 --out a.pth --ratio 2', 'ratio=2'),
        ('deit_tiny_patch16_224 --out a.pth --shape 0', 'positive'),
        ('deit_tiny_patch16_224 --out a.pth --variant heads', 'invalid choice')],
    'analysis_tools/summarize': [
        ('', 'required'), ('none', 'is no folder'), ('folder', 'holds no config'),
        ('file', 'is no folder'), ('run --out file/x', 'file'), ('run --json file/x', 'file'),
        ('run --device gpu', "device 'gpu'"), ('run --repeat 0', '--repeat'),
        ('run --pick worst', 'invalid choice'), ('run --json folder', 'folder')],
    'analysis_tools/openmmlab': [
        ('', 'required'), ('analyse_logs cls.py', 'invalid choice'), (
            'analyze_logs none.py', 'none.py'), ('analyze_logs clss.py', 'Did you mean'),
        ('confusion_matrix cls.py text.pth', 'text.pth'), ('analyze_logs broken.py', 'broken.py'),
        ('analyze_logs scopeless.py', 'default_scope')],
    'model_converters/export': [
        *[(f'{words} --format torch_export --out a.pt2', said)
          for words, said in (*ANY_CONFIG, *CHECKPOINT, *RATIO[:3])],
        ('cls.py', '--out'), ('cls.py --out a.pth', 'must end in'),
        ('cls.py --format torch_export --out file/a.pt2', 'file'),
        ('cls.py --format torch_export --out a.pt2 --shape 1 2 3', 'one or two'),
        ('cls.py --format tensorrt --out a.pt2', 'invalid choice'),
        ('cls.py --format torch_export --out a.pt2 --neck', 'no neck')],
    'model_converters/convert_vit': [
        ('', 'required'), ('text.pth a.pth', '--to'), ('none.pth a.pth --to timm', 'none.pth'),
        ('text.pth a.pth --to timm', 'text.pth'), ('folder a.pth --to timm', 'folder'),
        ('other.pth a.pth --to timm', 'not a ViT'), ('text.pth a.pth --to keras', 'invalid choice'),
        ('other.pth text.pth --to timm', 'exists'), ('vit.pth file/a.pth --to timm', 'file'),
        ('vit.pth a.safetensors --to mmext', '.pth'),
        ('vit.pth a.pth --to timm --prefix x.', 'x.')],
    'dataset_converters/imagenet100': [
        ('', 'required'), ('none out', 'lacks 100'), ('folder out', 'lacks 100'),
        ('folder out --classes none.txt', 'none.txt'), ('folder out --classes folder', 'folder'),
        ('file out', 'lacks 100')],
    'dev/gpu_check': [
        ('--device gpu', "device 'gpu'"), ('--json folder', 'folder'), ('--minutes x', 'invalid'),
        ('--nothing', '--nothing')],
}


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp('beginner')
    (path / 'cls.py').write_text(CLASSIFIER)
    (path / 'broken.py').write_text('model = dict(\n')
    (path / 'scopeless.py').write_text(CLASSIFIER.replace('default_scope', 'scope'))
    (path / 'text.pth').write_text('no checkpoint')
    (path / 'text.png').write_text('no image')
    (path / 'file').write_text('')
    (path / 'folder').mkdir()
    (path / 'run').mkdir()
    (path / 'run' / 'config.py').write_text(CLASSIFIER)
    torch.save({'state_dict': {'layer.weight': torch.ones(2)}}, path / 'other.pth')
    torch.save({'blocks.0.norm1.weight': torch.ones(2)}, path / 'vit.pth')
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    cv2.imwrite(str(path / 'image.png'), noise)
    return path


@pytest.mark.parametrize('name', MISTAKES)
def test_mistakes(name, folder, monkeypatch, capsys):
    from mmext.cli.clear_errors import one_clear_error
    spec = importlib.util.spec_from_file_location(f'tool_{Path(name).stem}', TOOLS / f'{name}.py')
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    monkeypatch.chdir(folder)
    before = {path: path.is_file() and path.read_bytes() for path in folder.rglob('*')}
    wrong = []
    for words, said in MISTAKES[name]:
        monkeypatch.setattr(sys, 'argv', [f'{name}.py', *shlex.split(words)])
        code = 0
        try:
            with one_clear_error():
                code = tool.main()
        except SystemExit as end:
            code = end.code
        err = capsys.readouterr().err
        last = (err.strip().splitlines() or [''])[-1]
        clear = last.startswith('error: ') or ': error: ' in last
        if not code or not clear or said not in last or 'Traceback' in err:
            wrong.append(f'{words!r}: status {code}, {last!r}, wanted {said!r}'
                         + (' after a traceback' if 'Traceback' in err else ''))
    assert not wrong, '\n'.join(wrong)
    assert all(path.read_bytes() == content for path, content in before.items() if content)


def test_every_tool_is_in_a_table():
    """Those that others test: their own files say so."""
    elsewhere = {'train', 'test', 'demo', 'analysis_tools/eval_coco', 'dataset_converters/digits',
                 'dataset_converters/check_coco', 'dataset_converters/coco_subset',
                 'model_converters/publish_model', 'dev/env_state', 'dev/evidence', 'models',
                 'dataset_converters/to_coco'}
    tools = {str(path.relative_to(TOOLS).with_suffix('')) for path in TOOLS.rglob('*.py')}
    assert tools - elsewhere <= set(MISTAKES)
