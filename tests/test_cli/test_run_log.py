"""What a training prints before its first iteration, and where the rest of it goes."""

import json
import logging
import os
import re
import subprocess
import sys
import warnings

import pytest

SHORT = ['train_cfg.max_iters=2', 'train_cfg.val_interval=2', 'train_dataloader.batch_size=2',
         'default_hooks.logger.interval=1', 'model.backbone.init_cfg=None']


def command(root_dir, digits, *options):
    return [sys.executable, root_dir / 'tools/train.py',
            root_dir / 'configs/quickstart/digits_mask_rcnn.py', '--work-dir', 'run', *options,
            '--cfg-options', *SHORT, f'data_root={digits}/detection']


@pytest.fixture(scope='module')
def trained(root_dir, digits, tmp_path_factory):
    """Lines of a short training whose output is a pipe, and its folder."""
    folder = tmp_path_factory.mktemp('trained')
    run = subprocess.run(command(root_dir, digits), cwd=folder, text=True, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT,
                         env={**os.environ, 'PYTHONPATH': str(root_dir)})
    assert run.returncode == 0, run.stdout[-3000:]
    return run.stdout.splitlines(), folder / 'run'


def test_a_summary_comes_before_the_first_iteration(trained):
    lines, _ = trained
    first = next(i for i, line in enumerate(lines) if 'Iter(train)' in line)
    before = '\n'.join(lines[:first])
    assert first <= 12, before
    for part in ('model: MaskRCNN on BiasPrunedViT, 1.37 M parameters', 'in batches of 2',
                 '2 iterations', 'validation', 'optimizer: AdamW, learning rate 0.001', 'seed 0'):
        assert part in before
    assert not re.search('OneDL|FileClient|HardDisk|loading annotations', '\n'.join(lines))
    assert '\x1b[2K' not in '\n'.join(lines) and 'ETA' not in before  # no bar in a pipe


def test_the_rest_is_in_files(trained):
    _, folder = trained
    details = next(folder.glob('*/environment.txt')).read_text()
    for part in ('System environment:', 'PyTorch:', 'Runtime environment:', 'SafeCheckpointHook',
                 'mmext set up: '):
        assert part in details
    assert 'keep_ratio' in (folder / 'digits_mask_rcnn.py').read_text()
    log = next(folder.glob('*/*.log')).read_text()
    assert 'System environment' not in log and 'model: MaskRCNN' in log and 'Iter(train)' in log


def test_the_last_line_names_the_checkpoints(trained):
    lines, folder = trained
    assert re.search(r'finished in \S*run: last iter_2\.pth; no best one is kept .*save_best',
                     lines[-1]), lines[-1]
    assert {'metrics.json', 'curves.png', 'predictions.png'} < {p.name for p in folder.iterdir()}


def test_early_stopping_as_documented(root_dir, digits, tmp_path):
    """The page's config; nothing counts as better, so the second validation is the last."""
    page = (root_dir / 'docs/training.md').read_text()
    text, = re.findall(r'<!-- file: stop_early.py -->\n```python\n(.*?)```', page, re.S)
    (tmp_path / 'stop_early.py').write_text(text)
    run = subprocess.run(
        [sys.executable, root_dir / 'tools/train.py', 'stop_early.py', '--cfg-options', *SHORT,
         'train_cfg.max_iters=9', 'train_cfg.val_interval=1', 'custom_hooks.0.min_delta=9',
         'custom_hooks.0.patience=1', 'model.test_cfg.rcnn.score_thr=0',
         f'data_root={digits}/detection'],
        cwd=tmp_path, text=True, capture_output=True,
        env={**os.environ, 'PYTHONPATH': str(root_dir)})
    assert run.returncode == 0, run.stderr[-3000:]
    folder = tmp_path / 'work_dirs/stop_early'
    metrics = json.loads((folder / 'metrics.json').read_text())
    assert [entry['iter'] for entry in metrics['history']] == [1, 2] and metrics['finished']
    last = (run.stdout + run.stderr).strip().splitlines()[-1]
    best = re.search(r'best coco/bbox_mAP (\S+): (best_\S+\.pth)', last)
    assert best and (folder / best[2]).is_file(), last
    assert float(best[1]) == metrics['best']['coco/bbox_mAP']['value']
    report = json.loads((folder / 'classes.json').read_text())
    assert [one['name'] for one in report['bbox']['classes']] == list('0123456789')
    assert len(report['segm']['confusion']) == 11 and (folder / 'classes.png').stat().st_size > 9999


def test_a_terminal_has_a_bar_below_whole_lines(root_dir, digits, tmp_path):
    master, slave = os.openpty()
    run = subprocess.Popen(command(root_dir, digits), cwd=tmp_path, stdout=slave, stderr=slave,
                           stdin=subprocess.DEVNULL,
                           env={**os.environ, 'PYTHONPATH': str(root_dir), 'TERM': 'xterm',
                                'COLUMNS': '1000'})
    os.close(slave)
    shown = b''
    while True:
        try:
            shown += os.read(master, 65536)
        except OSError:  # the other side is closed
            break
    os.close(master)
    text = shown.decode()
    assert run.wait() == 0, text[-3000:]
    assert re.search(r'training .*2/2.*ETA', text), text[-3000:]
    plain = re.sub(r'\x1b\[[0-9;?]*[A-Za-z]', '', text).replace('\r', '\n')
    lines = [line for line in plain.splitlines() if 'Iter(train)' in line]
    assert len(lines) == 2
    assert all(re.match(r'\d\d/\d\d .*INFO.*loss_mask: [\d.]+\s*$', line) for line in lines)


def test_only_known_messages_are_hidden(tmp_path):
    from mmext.cli.run_log import Details
    passes = Details(tmp_path / 'environment.txt').filter

    def record(text, level=logging.WARNING):
        return logging.LogRecord('mmengine', level, '', 0, text, (), None)
    assert passes(record('1 of 10 classes have no annotation: 4'))
    assert passes(record('Failed to search registry with scope "mine" in the "model" tree'))
    assert passes(record('Hooks will be executed in the following order', logging.ERROR))
    assert not (tmp_path / 'environment.txt').exists()
    assert not passes(record('"FileClient" will be deprecated in future.'))
    assert not passes(record('Config:\nmodel = 1', logging.INFO))
    assert not passes(record('paramwise_options -- a.b:lr=1', logging.INFO))
    assert (tmp_path / 'environment.txt').read_text() == 'paramwise_options -- a.b:lr=1\n'


def test_other_messages_of_the_packages_still_show(capsys):
    import mmengine.logging
    import pycocotools.coco

    import mmext.registry  # noqa: F401
    from mmext.compat.messages import silence_coco
    mmengine.logging.print_log('Could not import OneDL', level=logging.DEBUG)
    mmengine.logging.print_log('a real warning', level=logging.WARNING)
    silence_coco()
    pycocotools.coco.print('index created!')
    pycocotools.coco.print('a', 'caption')
    assert capsys.readouterr().out.splitlines() == ['a real warning', 'a caption']
    with warnings.catch_warnings(record=True) as caught:
        warnings.warn('faster_coco_eval changed', stacklevel=1)
    assert len(caught) == 1


def test_scalars_for_tensorboard(root_dir, monkeypatch, digits, tmp_path):
    """mmengine's own backend writes what the log says; an absent package is one clear line."""
    pytest.importorskip('tensorboard')
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from mmext.cli import run_log
    run = subprocess.run(command(root_dir, digits, '--log', 'tensorboard'), cwd=tmp_path, text=True,
                         capture_output=True, env={**os.environ, 'PYTHONPATH': str(root_dir)})
    assert run.returncode == 0, run.stderr[-3000:]
    events = EventAccumulator(str(next(tmp_path.glob('run/*/vis_data'))))
    events.Reload()
    losses = [event.value for event in events.Scalars('loss')]
    shown = [float(v) for v in re.findall(r'  loss: ([\d.]+)', run.stdout)]
    assert losses == pytest.approx(shown, abs=1e-3) and len(losses) == 2
    monkeypatch.setattr(run_log.importlib.util, 'find_spec', lambda name: None)
    with pytest.raises(run_log.ConfigError, match='pip install wandb'):
        run_log.log_scalars_to(None, 'wandb')
