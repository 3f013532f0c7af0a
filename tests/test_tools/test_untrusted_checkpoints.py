"""A checkpoint that would run code is refused wherever a file goes in, and the cure is named."""

import functools
import http.server
import importlib.util
import inspect
import os
import pickle
import sys
import threading

import pytest
import timm
import torch
from detection_helpers import PAIR, small_config
from mmengine.registry import DefaultScope

import mmext.timm_models  # noqa: F401  (registers with timm)
from mmext.checkpoints.structured import load_pruned
from mmext.engine import PretrainedHeadHook
from mmext.models import DMST, BiasPrunedViT

CURE = 'TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1'


class Attack:
    """Unpickled without care, this makes a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.fixture
def attack(tmp_path, monkeypatch):
    """Such a file, and after the test: nothing of it was run."""
    monkeypatch.delenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', raising=False)
    monkeypatch.setenv('TORCH_FORCE_WEIGHTS_ONLY_LOAD', '')
    monkeypatch.chdir(tmp_path)
    DefaultScope._instance_dict.clear()
    path, trap = tmp_path / 'attack.pth', tmp_path / 'executed'
    model = timm.create_model('deit_tiny_patch16_224', depth=1)
    content = dict(model=model.state_dict(), state_dict=model.state_dict(), extra=Attack(trap))
    torch.save(dict(content, meta={}, arch='deit_tiny_patch16_224', num_heads=[3]), path)
    yield path
    assert not trap.exists(), 'code in the file was executed'
    monkeypatch.setenv('TORCH_FORCE_WEIGHTS_ONLY_LOAD', '0')
    torch.load(path, weights_only=False)
    assert trap.exists()  # the file really is an attack
    DefaultScope._instance_dict.clear()


@pytest.fixture
def tool(root_dir):
    """Module of a tool by its path below tools/."""

    def load(name):
        path = root_dir / 'tools' / f'{name}.py'
        sys.path.insert(0, str(path.parent))  # neighbors that it imports
        try:
            spec = importlib.util.spec_from_file_location(f'tool_{path.stem}', path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        finally:
            sys.path.remove(str(path.parent))
        return module

    return load


def refusal(call, capsys):
    """What a call that must fail says: its error and what it printed."""
    with pytest.raises((Exception, SystemExit)) as error:
        code = call()
        if code:
            raise SystemExit(code)
    return str(error.value) + capsys.readouterr().err


OPTIONS = {
    'load_from': ['load_from={}'],
    'weights of the backbone': [
        'model.backbone.init_cfg.type=Pretrained', 'model.backbone.init_cfg.checkpoint={}'],
    'weights of the head': [
        'model.head.init_cfg.type=Pretrained', 'model.head.init_cfg.checkpoint={}'],
    'weights of the model': ['model.init_cfg.type=Pretrained', 'model.init_cfg.checkpoint={}'],
}


@pytest.mark.parametrize('where', OPTIONS)
def test_train(attack, tool, root_dir, monkeypatch, capsys, where):
    """Before anything is built: not even the data are looked for."""
    train = tool('train')
    options = [option.format(attack) for option in OPTIONS[where]]
    config = str(root_dir / 'configs' / 'quickstart' / 'digits_cls.py')
    monkeypatch.setattr(sys, 'argv', ['train.py', config, '--cfg-options', *options])

    def call():
        with train.one_clear_error():
            train.main()

    said = refusal(call, capsys)
    assert str(attack) in said and CURE in said and 'Traceback' not in said, said
    assert not os.path.exists('work_dirs')


@pytest.mark.parametrize('name', ['digits_cls', 'digits_mask_rcnn'])
def test_demo(attack, tool, root_dir, tmp_path, capsys, name):
    image = next((root_dir / 'docs' / 'images').glob('*.png'))
    config = root_dir / 'configs' / 'quickstart' / f'{name}.py'
    said = refusal(lambda: tool('demo').main([str(image), str(config), str(attack)]), capsys)
    assert str(attack) in said and CURE in said


def test_analysis_tools(attack, tool, root_dir, tmp_path, capsys):
    config = str(root_dir / 'configs' / 'quickstart' / 'digits_cls.py')
    image = next((root_dir / 'docs' / 'images').glob('*.png'))
    command = [config, str(attack), '--images', str(image), '--out', str(tmp_path / 'out')]
    said = refusal(lambda: tool('analysis_tools/attention_maps').main(command), capsys)
    assert str(attack) in said and CURE in said
    rest = ['confusion_matrix', config, str(attack), '--show-path', str(tmp_path / 'cm.png')]
    said = refusal(lambda: tool('analysis_tools/openmmlab').main(rest), capsys)
    assert str(attack) in said and CURE in said


def test_openmmlab_from_any_place(attack, tool, root_dir, tmp_path, capsys, monkeypatch):
    """By URL and in results: what is refused is not the spelling of a path."""
    monkeypatch.setattr(torch.hub, '_hub_dir', str(tmp_path / 'hub'))
    config = str(root_dir / 'configs' / 'quickstart' / 'digits_cls.py')
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler)
    threading.Thread(target=server.serve_forever).start()
    results = tmp_path / 'results.pkl'
    results.write_bytes(pickle.dumps([Attack(tmp_path / 'executed')]))
    try:
        for word in (f'http://127.0.0.1:{server.server_port}/{attack.name}', str(results)):
            rest = ['confusion_matrix', config, word, '--show-path', str(tmp_path / 'cm.png')]
            said = refusal(lambda rest=rest: tool('analysis_tools/openmmlab').main(rest), capsys)
            assert CURE in said, said
    finally:
        server.shutdown()


def test_own_scripts(attack, capsys):
    """mmengine's functions after `import mmext.registry`, and its second try with code allowed."""
    from mmengine.runner.checkpoint import _load_checkpoint, load_checkpoint
    for load in (_load_checkpoint, lambda path: load_checkpoint(torch.nn.Linear(1, 1), path)):
        said = refusal(lambda load=load: load(str(attack)), capsys)
        assert str(attack) in said and CURE in said


@pytest.mark.parametrize('name, arguments', [
    ('model_converters/convert_vit', ['{}', 'out.pth', '--to', 'mmext']),
    ('model_converters/publish_model', ['{}', 'out.pth']),
    ('model_converters/export',
     ['{config}', '{}', '--format', 'torch_export', '--out', 'out.pt2']),
    ('analysis_tools/structured_pruning',
     ['deit_tiny_patch16_224', '--checkpoint', '{}', '--out', 'out.pth'])])
def test_converters(attack, tool, root_dir, capsys, name, arguments):
    config = root_dir / 'configs' / 'quickstart' / 'digits_cls.py'
    arguments = [argument.format(attack, config=config) for argument in arguments]
    said = refusal(lambda: tool(name).main(arguments), capsys)
    assert str(attack) in said and CURE in said, said
    assert not list(attack.parent.glob('out*'))


@pytest.mark.parametrize('load', [
    lambda path: BiasPrunedViT('deit-tiny').load_pretrained(path),
    lambda path: DMST('tiny').load_pretrained(path),
    lambda path: PretrainedHeadHook(path).before_train(
        type('Runner', (), dict(iter=0, _load_from=None, model=torch.nn.Module()))),
    load_pruned])
def test_functions(attack, load, capsys):
    said = refusal(lambda: load(str(attack)), capsys)
    assert str(attack) in said and CURE in said


def test_detector_by_init_cfg(attack, capsys):
    from detection_helpers import build
    cfg = small_config(PAIR)
    cfg.model.backbone.init_cfg = dict(type='Pretrained', checkpoint=str(attack))
    said = refusal(lambda: build(cfg), capsys)
    assert str(attack) in said and CURE in said


@pytest.mark.parametrize('options', [
    lambda path: dict(checkpoint_path=path),
    lambda path: dict(pretrained=True, pretrained_cfg_overlay=dict(file=path))])
def test_models_of_timm(attack, capsys, options):
    """timm's own loading, and its own words for the cure."""
    if not inspect.signature(timm.models.load_checkpoint).parameters['weights_only'].default:
        pytest.skip('this timm executes code in checkpoints by default')
    said = refusal(lambda: timm.create_model(
        'deit_tiny_bias_patch16_224', depth=1, **options(str(attack))), capsys)
    assert 'weights_only' in said
