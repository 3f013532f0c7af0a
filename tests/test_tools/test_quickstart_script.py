"""The order of things in quickstart.sh, with stand-ins for the trainings."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DEV = Path(__file__).resolve().parents[2] / 'tools' / 'dev'

TRAIN = '''
import json, os, pathlib, sys
folder = pathlib.Path(sys.argv[sys.argv.index('--work-dir') + 1])
folder.mkdir(parents=True, exist_ok=True)
with open('calls.txt', 'a') as file:
    print(*sys.argv[1:], file=file)
if os.environ.get('FAIL') == folder.name:
    sys.exit('disk full')
(folder / 'last.pth').write_text('weights')
metrics = {'accuracy/top1': 96.5, 'coco/bbox_mAP': .81, 'coco/segm_mAP': .82}
for name in ('curves.png', 'predictions.png'):
    (folder / name).write_text('')
(folder / 'metrics.json').write_text(json.dumps(
    {'finished': True, 'checkpoint': 'last.pth', 'metrics': metrics}))
'''


@pytest.fixture
def checkout(tmp_path):
    root = tmp_path / 'a checkout'
    shutil.copytree(DEV, root / 'tools' / 'dev')
    (root / 'tools' / 'dev' / 'env_state.py').write_text('')  # nothing to install
    (root / 'tools' / 'dev' / 'quickstart_time.py').write_text('print(6, 90, 252)')
    (root / 'tools' / 'train.py').write_text(TRAIN)
    (root / 'tools' / 'dataset_converters').mkdir()
    (root / 'tools' / 'dataset_converters' / 'digits.py').write_text('')
    return root


def quickstart(root, *options, **env):
    done = subprocess.run(
        ['bash', str(root / 'tools' / 'dev' / 'quickstart.sh'), *options],
        capture_output=True, text=True, cwd=root.parent,
        env={**os.environ, 'PYTHON': sys.executable, **env})
    return done.returncode, done.stdout, done.stderr


def trainings(root):
    return (root / 'calls.txt').read_text().splitlines()


def test_trains_both_then_names_the_files_and_does_not_train_again(checkout):
    code, out, err = quickstart(checkout)
    assert code == 0, err
    first, second = trainings(checkout)
    assert 'digits_cls.py' in first and '--resume' in first
    assert 'digits_mask_rcnn_short.py' in second
    assert second.endswith('init_cfg.checkpoint=work_dirs/digits_cls/last.pth')
    named = [Path(line.split(maxsplit=1)[1]) for line in out.splitlines()[-4:]]
    assert [path.name for path in named] == [
        'last.pth', 'metrics.json', 'curves.png', 'predictions.png']
    assert all(path.is_absolute() and path.exists() for path in named)
    assert 'bbox mAP 0.810, segm mAP 0.820' in out and '96.5' in out
    # what is done and how long it takes comes first, then what is left
    plan = out[:out.index('== 1/3')]
    assert 'about 5.8 minutes' in plan and all(f'{n}/3 ' in plan for n in (1, 2, 3))
    assert '1.5 minutes' in plan and '4.2 minutes' in plan and '0.1 minutes' in plan
    assert 'about 5.7 to go' in out and out.count(' to go') == 2

    code, again, err = quickstart(checkout)
    assert code == 0 and again.splitlines()[-4:] == out.splitlines()[-4:]
    assert len(trainings(checkout)) == 2 and '--fresh' in again
    assert 'about 0.1 minutes' in again[:again.index('== 1/3')]  # only the data are made again

    assert quickstart(checkout, '--fresh')[0] == 0
    assert len(trainings(checkout)) == 4


def test_goes_on_after_a_failure(checkout):
    code, out, err = quickstart(checkout, FAIL='digits_mask_rcnn_short')
    assert code != 0 and 'disk full' in err and 'goes on where it stopped' in err
    assert 'Done' not in out
    assert quickstart(checkout)[0] == 0
    assert [line.split()[0].split('/')[-1] for line in trainings(checkout)] == [
        'digits_cls.py', 'digits_mask_rcnn_short.py', 'digits_mask_rcnn_short.py']


def test_unknown_argument_and_help(checkout):
    code, _, err = quickstart(checkout, '--fast')
    assert code == 2 and '--fast' in err and 'Usage' in err
    code, out, _ = quickstart(checkout, '--help')
    assert code == 0 and 'Usage' in out
    assert not (checkout / 'calls.txt').exists()


def test_the_estimate_follows_the_machine(load_tool):
    tool = load_tool('dev/quickstart_time')
    slow, fast = tool.estimate(2 * tool.PROBE), tool.estimate(tool.PROBE)
    assert fast == list(tool.PARTS.values()) and slow == [2 * value for value in fast]
    assert 0 < tool.probe(.1) < 10
