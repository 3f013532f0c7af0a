"""tools/train.py and tools/test.py from the command line, on a tiny set of digits."""

import importlib.util
import json
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
import torch

from mmext.compat.torch_load import allow_own_checkpoints

SMALL = ['train_cfg.max_iters=6', 'train_cfg.val_interval=6', 'train_dataloader.batch_size=2',
         'default_hooks.logger.interval=1', 'default_hooks.checkpoint.interval=2',
         'default_hooks.checkpoint.max_keep_ckpts=9', 'model.backbone.init_cfg=None']


@pytest.fixture(scope='module')
def digits(root_dir, tmp_path_factory):
    out = tmp_path_factory.mktemp('data') / 'digits'
    subprocess.run(
        [sys.executable, root_dir / 'tools' / 'dataset_converters' / 'digits.py', '--out', out,
         '--train', '8', '--val', '4'], check=True, capture_output=True)
    return out


def data_options(digits):
    return [f'data_root={digits}/detection']


def environment():
    env = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
    return {**env, 'OMP_NUM_THREADS': '2', 'PYTHON': sys.executable}


def tool(root_dir, name, *args, cwd):
    return subprocess.run([sys.executable, root_dir / 'tools' / name, *map(str, args)], cwd=cwd,
                          env=environment(), capture_output=True, text=True)


@pytest.fixture
def config(root_dir):
    return root_dir / 'configs' / 'quickstart' / 'digits_mask_rcnn.py'


def test_detector_trains_resumes_and_tests(root_dir, config, digits, tmp_path):
    """From another folder: train, kill -9 after a checkpoint, resume, test, draw."""
    options = [*SMALL, *data_options(digits)]
    command = [sys.executable, root_dir / 'tools' / 'train.py', config, '--work-dir', 'run',
               '--cfg-options', *options]
    first = subprocess.Popen(list(map(str, command)), cwd=tmp_path, env=environment(),
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    last = tmp_path / 'run' / 'last_checkpoint'
    deadline = time.time() + 300
    while not last.exists() and time.time() < deadline and first.poll() is None:
        time.sleep(.05)
    first.send_signal(signal.SIGKILL)
    output = first.communicate()[0]
    assert last.exists(), output
    saved = int(re.search(r'iter_(\d+)\.pth', last.read_text()).group(1))
    assert saved in (2, 4)

    second = tool(root_dir, 'train.py', config, '--work-dir', 'run', '--resume', '--cfg-options',
                  *options, cwd=tmp_path)
    assert second.returncode == 0, second.stderr[-3000:]
    log = second.stdout + second.stderr
    assert re.search(rf'resumed epoch: \d+, iter: {saved}', log)
    iterations = [int(i) for i in re.findall(r'Iter\(train\) \[ *(\d+)/6\]', log)]
    assert iterations == list(range(saved + 1, 7))
    checkpoint = tmp_path / 'run' / 'iter_6.pth'
    allow_own_checkpoints()  # mmengine's own loading takes the permission away again
    content = torch.load(checkpoint, weights_only=True)
    assert content['meta']['iter'] == 6 and 'optimizer' in content

    for out in ('result.pkl', 'metrics.json'):
        test = tool(root_dir, 'test.py', config, checkpoint, '--work-dir', 'run', '--out', out,
                    '--show-dir', 'shown', '--overwrite', '--cfg-options', *data_options(digits),
                    cwd=tmp_path)
        assert test.returncode == 0, test.stderr[-3000:]
    predictions = pickle.loads((tmp_path / 'result.pkl').read_bytes())
    assert len(predictions) == 4 and {'img_id', 'pred_instances'} <= predictions[0].keys()
    metrics = json.loads((tmp_path / 'metrics.json').read_text())
    assert {'coco/bbox_mAP', 'coco/segm_mAP'} <= metrics.keys()
    assert len(list((tmp_path / 'shown').glob('**/*.png'))) == 4


def test_classifier_trains_and_tests(root_dir, digits, tmp_path):
    config = root_dir / 'configs' / 'quickstart' / 'digits_cls.py'
    data = [f'data_root={digits}/classification']
    run = tool(root_dir, 'train.py', config, '--work-dir', 'run', '--amp', '--cfg-options', *data,
               'train_cfg.max_epochs=1', 'train_cfg.val_interval=1', cwd=tmp_path)
    assert run.returncode == 0, run.stderr[-3000:]
    if not torch.cuda.is_available():
        assert (run.stdout + run.stderr).count('mixed precision (AmpOptimWrapper)') == 1
    checkpoint = (tmp_path / 'run' / 'last_checkpoint').read_text()
    results = {}
    for flag in ((), ('--tta', )):
        test = tool(root_dir, 'test.py', config, checkpoint, '--work-dir', 'run', '--out',
                    'metrics.json', '--overwrite', *flag, '--cfg-options', *data, cwd=tmp_path)
        assert test.returncode == 0, test.stderr[-3000:]
        results[flag] = json.loads((tmp_path / 'metrics.json').read_text())['accuracy/top1']
    validated = re.findall(r'accuracy/top1: ([\d.]+)', run.stdout + run.stderr)[-1]
    assert results[()] == pytest.approx(float(validated), abs=1e-3)
    assert 0 < results['--tta', ] <= 100


def test_two_processes_end_at_the_same_iteration(root_dir, config, digits, tmp_path):
    """dist_train.sh on CPUs (gloo) or GPUs, without find_unused_parameters."""
    if torch.cuda.is_available() and torch.cuda.device_count() < 2:
        pytest.skip('needs two GPUs or none')
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    env = {**environment(), 'MASTER_PORT': str(port), 'OMP_NUM_THREADS': '1'}
    run = subprocess.run(
        ['bash', root_dir / 'tools' / 'dist_train.sh', config, '2', '--work-dir', 'run',
         '--cfg-options', *SMALL, *data_options(digits)],
        cwd=tmp_path, env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    log = run.stdout + run.stderr
    losses = [float(v) for v in re.findall(r'Iter\(train\).*?  loss: ([\d.naif]+)', log)]
    assert len(losses) == 6 and all(0 < v < 100 for v in losses)
    allow_own_checkpoints()
    assert torch.load(tmp_path / 'run' / 'iter_6.pth', weights_only=True)['meta']['iter'] == 6
    assert 'coco/segm_mAP' in log


@pytest.fixture
def train(root_dir, monkeypatch, capsys, tmp_path):
    """Calls tools/train.py in this process; gives its exit status and what it printed."""
    spec = importlib.util.spec_from_file_location('train_tool', root_dir / 'tools' / 'train.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def call(*args):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, 'argv', ['train.py', *map(str, args)])
        with pytest.raises(SystemExit) as end, module.one_clear_error():
            module.main()
        return end.value.code, capsys.readouterr().err

    return call


def test_bad_configs_get_one_clear_error(train, config, digits, tmp_path):
    good = [*SMALL, *data_options(digits)]

    def error(*options, path=config):
        code, text = train(path, '--work-dir', tmp_path / 'run', '--cfg-options', *good, *options)
        assert code == 1 and 'Traceback' not in text, text
        assert not (tmp_path / 'run').exists()  # nothing half-written
        return text

    assert "Did you mean 'keep_ratio'" in error('model.backbone.keep_ratioo=.5')
    assert "Did you mean 'mmext.BiasPrunedViT'" in error('model.backbone.type=mmext.BiasPrunedVit')
    text = error('train_dataloader.dataset.ann_file=annotations/none.json')
    assert 'none.json' in text and 'does not exist' in text
    text = error('train_dataloader.dataset.metainfo.classes="(zero,one)"')
    assert 'zero' in text and 'instances_train.json' in text
    text = error(path=str(config).replace('mask_rcnn', 'mask_rcn'))
    assert 'Did you mean' in text and 'digits_mask_rcnn.py' in text
    text = error('load_from=a.pth')
    assert "'a.pth' does not exist" in text


def test_bad_values_name_the_value(train, config, digits, tmp_path):
    code, text = train(config, '--work-dir', tmp_path / 'run', '--cfg-options', *SMALL,
                       *data_options(digits), 'model.backbone.keep_ratio=1.5')
    assert code == 1 and 'error: ' in text.strip().splitlines()[-1]
    assert 'keep_ratio=1.5' in text.strip().splitlines()[-1]


def test_truncated_image_is_named(train, config, digits, tmp_path):
    import shutil
    broken = tmp_path / 'broken'
    shutil.copytree(digits, broken)
    image = sorted((broken / 'detection' / 'train').glob('*.png'))[3]
    image.write_bytes(image.read_bytes()[:500])
    for workers in (0, 1):
        code, text = train(config, '--work-dir', tmp_path / 'run', '--cfg-options', *SMALL,
                           *data_options(broken), f'train_dataloader.num_workers={workers}')
        last = text.strip().splitlines()[-1]
        assert code == 1 and image.name in last and 'truncated' in last, text[-2000:]
