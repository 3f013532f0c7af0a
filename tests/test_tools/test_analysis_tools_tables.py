"""summarize.py on work dirs made by hand; openmmlab.py on the real scripts of mmdet, mmpretrain."""

import csv
import importlib
import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from mmext.analysis import flop_formulas as flops
from mmext.cli.config_check import ConfigError

TOOLS = Path(__file__).resolve().parents[2] / 'tools' / 'analysis_tools'
CONFIG = """
default_scope = 'mmpretrain'
model = dict(
    type='ImageClassifier',
    backbone=dict(type='mmext.BiasPrunedViT', arch='tiny-test', img_size=64{more}),
    head=dict(type='LinearClsHead', num_classes=3, in_channels=32))
"""
HISTORY = [{'iter': 10, 'epoch': 1, 'accuracy/top1': 50., 'accuracy/top5': 90.},
           {'iter': 20, 'epoch': 2, 'accuracy/top1': 71.5, 'accuracy/top5': 95.},
           {'iter': 30, 'epoch': 3, 'accuracy/top1': 70.25, 'accuracy/top5': 96.}]


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    return lambda name: importlib.import_module(name)


@pytest.fixture
def runs(tmp_path):
    """One run with metrics.json, one with mmengine's log alone."""
    first, second = tmp_path / 'dense', tmp_path / 'pruned'
    for folder, more in ((first, ''), (second, ', keep_ratio=.5')):
        folder.mkdir()
        (folder / 'config.py').write_text(CONFIG.format(more=more))
    (first / 'metrics.json').write_text(json.dumps({
        'history': HISTORY, 'finished': True, 'seed': 7,
        'environment': {'device': 'a GPU'}}))
    log = second / '20260101_000000' / 'vis_data'
    log.mkdir(parents=True)
    lines = [{'loss': 1., 'step': 5}, {'accuracy/top1': 66., 'step': 1}, {'loss': .5, 'step': 9},
             {'accuracy/top1': 68.5, 'step': 2}]
    (log / 'scalars.json').write_text('\n'.join(map(json.dumps, lines)) + '\n')
    return first, second


def test_table_of_runs(tool, runs, tmp_path, capsys):
    tool('summarize').main([*map(str, runs), '--out', str(tmp_path / 't'), '--json',
                            str(tmp_path / 't' / 'a.json')])
    dense, pruned = json.loads((tmp_path / 't' / 'a.json').read_text())
    assert dense['top-1 (%)'] == 70.25 and dense['top-5 (%)'] == 96. and dense['seed'] == 7
    assert dense['at iteration'] == 30 and dense['trained on'] == 'a GPU' and dense['finished']
    assert pruned['top-1 (%)'] == 68.5 and 'top-5 (%)' not in pruned and 'seed' not in pruned
    head = {'num_classes': 3, 'prefix_tokens': 1}
    for row, ratio in ((dense, None), (pruned, .5)):
        macs = flops.vit_macs((64, 64), 32, 2, 2, key_bias=True, keep_ratio=ratio, **head)
        assert row['GFLOPs'] == pytest.approx(2 * macs / 1e9, rel=1e-6)
        # blocks 2 x (12 d^2 + 13 d + d H), patches, positions, class token, norm, head
        d = 32
        params = 2 * (12 * d * d + 13 * d + 2 * d) + 769 * d + 17 * d + d + 2 * d + 3 * d + 3
        assert row['params (M)'] == pytest.approx(params / 1e6)
    text = capsys.readouterr().out
    assert (tmp_path / 't' / 'summary.md').read_text() in text
    lines = text.strip().splitlines()
    assert lines[0].startswith('| run | config | top-1 (%) |') and '| 70.250 |' in lines[2]
    assert '–' in lines[3] and len({line.count('|') for line in lines}) == 1
    with open(tmp_path / 't' / 'summary.csv') as file:
        rows = list(csv.DictReader(file))
    assert [row['top-1 (%)'] for row in rows] == ['70.25', '68.5']


def test_best_validation_and_latency(tool, runs, tmp_path):
    path = tmp_path / 'a.json'
    tool('summarize').main([*map(str, runs), '--pick', 'best', '--latency', '--repeat', '2',
                            '--device', 'cpu', '--json', str(path)])
    dense, pruned = json.loads(path.read_text())
    assert dense['top-1 (%)'] == 71.5 and dense['at iteration'] == 20
    [column] = [key for key in dense if key.startswith('backbone ms')]
    assert dense[column] > 0 and pruned[column] > 0


def test_folder_without_a_run(tool, tmp_path):
    with pytest.raises(ConfigError, match='holds no config'):
        tool('summarize').main([str(tmp_path)])
    with pytest.raises(ConfigError, match='is no folder'):
        tool('summarize').main([str(tmp_path / 'none')])


@pytest.mark.parametrize('scope', ['mmdet', 'mmpretrain'])
def test_log_analysis_of_both_scopes(tool, tmp_path, scope):
    config = tmp_path / 'config.py'
    config.write_text(f"default_scope = '{scope}'\n")
    log = tmp_path / 'log.json'
    log.write_text('\n'.join(json.dumps(
        {'lr': .1, 'loss': 2 / step, 'time': .1, 'epoch': 1, 'iter': step, 'step': step})
        for step in range(1, 20)) + '\n')
    out = tmp_path / 'loss.png'
    tool('openmmlab').main(['analyze_logs', str(config), 'plot_curve', str(log), '--keys', 'loss',
                            '--out', str(out)])
    assert cv2.imread(str(out)).std() > 0


def test_browse_and_confusion_matrix_of_a_classifier(tool, tmp_path):
    data = tmp_path / 'data'
    for label in 'abc':
        (data / label).mkdir(parents=True)
        for i in range(2):
            image = np.random.default_rng(i).integers(0, 255, (64, 64, 3), dtype=np.uint8)
            cv2.imwrite(str(data / label / f'{label}{i}.png'), image)
    loader = f"""dict(
    batch_size=2, num_workers=0, sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(type='CustomDataset', data_root={str(data)!r}, pipeline=[
        dict(type='LoadImageFromFile'), dict(type='PackInputs')]))
"""
    config = tmp_path / 'config.py'
    config.write_text(CONFIG.format(more='') + f'train_dataloader = {loader}'
                      f'test_dataloader = {loader}'
                      "test_evaluator = dict(type='Accuracy', topk=1)\ntest_cfg = dict()\n"
                      "visualizer = dict(type='UniversalVisualizer')\n")
    tool('openmmlab').main(['browse_dataset', str(config), '--output-dir',
                            str(tmp_path / 'shown'), '--not-show'])
    assert len(list((tmp_path / 'shown').rglob('*.png'))) == 6

    import torch
    from mmengine.config import Config

    from mmext.cli.launch import build_model
    model = build_model(Config.fromfile(config))
    torch.save({'state_dict': model.state_dict()}, tmp_path / 'model.pth')
    shown = tmp_path / 'matrix.png'
    # mmpretrain's tool trains nothing, but its Runner wants both or none of these
    tool('openmmlab').main(['confusion_matrix', str(config), str(tmp_path / 'model.pth'),
                            '--show-path', str(shown), '--cfg-options', 'train_dataloader=None'])
    assert cv2.imread(str(shown)).std() > 0


def test_every_script_exists(tool):
    openmmlab = tool('openmmlab')
    for scope, name in openmmlab.FOLDERS:
        assert openmmlab.script(scope, name).is_file()
