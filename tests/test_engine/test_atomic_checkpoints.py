"""Whatever ends a run, the checkpoints on disk are complete and the newest one is named."""

import errno
import os
import pickle
import random
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from mmengine.evaluator import BaseMetric
from mmengine.fileio import LocalBackend
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from mmext.checkpoints.safe_reader import read_checkpoint
from mmext.engine.hooks import UNFINISHED, CheckpointError


class Model(BaseModel):

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(50_000))

    def forward(self, inputs, mode='tensor'):
        return dict(loss=self.weight.mean()) if mode == 'loss' else [inputs]


class Score(BaseMetric):
    """1, 2, 3, ...: every evaluation is the best so far."""

    count = 0

    def process(self, data_batch, data_samples):
        self.results.append(0)

    def compute_metrics(self, results):
        self.count += 1
        return dict(score=self.count)


def make_runner(folder, epochs=4, hooks=(), resume=False, **options):
    loader = DataLoader([dict(inputs=torch.ones(1))])
    checkpoint = dict(type='mmext.SafeCheckpointHook', interval=1, max_keep_ckpts=1, **options)
    evaluation = dict(val_dataloader=loader, val_cfg=dict(), val_evaluator=[Score()]) if (
        'save_best' in options) else {}
    return Runner(
        Model(), str(folder), train_dataloader=loader, custom_hooks=list(hooks), resume=resume,
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1, momentum=0.9)),
        train_cfg=dict(by_epoch=True, max_epochs=epochs, val_interval=1), default_scope='mmengine',
        default_hooks=dict(checkpoint=checkpoint), experiment_name=f'{folder}{resume}',
        **evaluation)


def names(folder):
    """All files but the configs that mmengine writes there."""
    return sorted(p.name for p in folder.iterdir() if p.is_file() and p.suffix != '.py')


def epoch_of(path):
    return read_checkpoint(str(path))['meta']['epoch']


class FailAt(Hook):
    """From one epoch on every write of a file fails: nothing at all, or after half of it."""

    def __init__(self, epoch, monkeypatch, half):
        self.epoch, self.monkeypatch, self.half = epoch, monkeypatch, half

    def before_train_epoch(self, runner):
        if runner.epoch != self.epoch:
            return

        def put(backend, obj, filepath):
            if self.half:
                Path(filepath).write_bytes(obj[:len(obj) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(filepath))

        self.monkeypatch.setattr(LocalBackend, 'put', put)


@pytest.mark.parametrize('half', [True, False])
@pytest.mark.parametrize('options', [{}, dict(save_best='score', rule='greater')])
def test_full_disk_leaves_the_previous_checkpoint(tmp_path, monkeypatch, half, options):
    run = tmp_path / 'run'
    message = r'No space left.*epoch_2\.pth, is untouched.*--resume'
    with pytest.raises(CheckpointError, match=message):
        make_runner(run, hooks=[FailAt(2, monkeypatch, half)], **options).train()
    best = ['best_score_epoch_2.pth'] if options else []
    assert names(run) == [*best, 'epoch_2.pth', 'last_checkpoint']
    assert (run / 'last_checkpoint').read_text() == str(run / 'epoch_2.pth')
    assert epoch_of(run / 'epoch_2.pth') == 2
    monkeypatch.undo()
    runner = make_runner(run, resume=True, **options)
    runner.train()
    assert runner.epoch == 4 and epoch_of(run / 'epoch_4.pth') == 4
    assert [name for name in names(run) if name.startswith('epoch')] == ['epoch_4.pth']


def test_full_disk_while_saving_the_best(tmp_path, monkeypatch):
    """The old best one stays until the new one is complete."""
    run, put = tmp_path / 'run', LocalBackend.put

    def no_room_for_second_best(backend, obj, filepath):
        if 'best_score_epoch_2' in str(filepath):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        put(backend, obj, filepath)

    monkeypatch.setattr(LocalBackend, 'put', no_room_for_second_best)
    with pytest.raises(CheckpointError, match='best_score_epoch_2'):
        make_runner(run, save_best='score', rule='greater').train()
    assert names(run) == ['best_score_epoch_1.pth', 'epoch_2.pth', 'last_checkpoint']


def test_the_system_refuses_the_write(tmp_path):
    """A real failure in the middle of a write: the largest file size the process may write."""

    class Limit(Hook):

        def before_train_epoch(self, runner):
            if runner.epoch == 2:
                resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(CheckpointError, match=r'File too large.*epoch_2.pth, is untouched'):
            make_runner(tmp_path / 'run', hooks=[Limit()]).train()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert names(tmp_path / 'run') == ['epoch_2.pth', 'last_checkpoint']
    assert epoch_of(tmp_path / 'run' / 'epoch_2.pth') == 2


def test_older_checkpoints_go_after_the_new_one_is_there(tmp_path, monkeypatch):
    run, seen = tmp_path / 'run', []
    put = LocalBackend.put

    def watch(backend, obj, filepath):
        seen.append((Path(filepath).name, [n for n in names(run) if n.endswith('.pth')]))
        put(backend, obj, filepath)

    monkeypatch.setattr(LocalBackend, 'put', watch)
    make_runner(run, epochs=3, save_best='score', rule='greater').train()
    assert seen[0] == ('epoch_1.pth' + UNFINISHED, [])
    for name, there in seen:
        assert name.endswith(UNFINISHED)
        epoch = int(name.split('epoch_')[1].split('.')[0])
        assert epoch == 1 or {f'epoch_{epoch - 1}.pth', f'epoch_{epoch}.pth'} & set(there)
        assert epoch == 1 or 'best' not in name or f'best_score_epoch_{epoch - 1}.pth' in there
    assert names(run) == ['best_score_epoch_3.pth', 'epoch_3.pth', 'last_checkpoint']


def test_left_overs_of_a_killed_run_are_removed(tmp_path):
    run = tmp_path / 'run'
    make_runner(run, epochs=1).train()
    (run / f'epoch_2.pth{UNFINISHED}').write_bytes(b'half')
    make_runner(run, epochs=2, resume=True).train()
    assert names(run) == ['epoch_2.pth', 'last_checkpoint']


# ------------------------------------------------------------------ through the tools
CONFIG = """
default_scope = 'mmpretrain'
model = dict(
    type='ImageClassifier',
    backbone=dict(type='mmext.BiasPrunedViT', arch='tiny-test', img_size=32, keep_ratio=(.9, .5)),
    head=dict(type='LinearClsHead', num_classes=10, in_channels=32))
data = dict(
    batch_size=4, num_workers=0, sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(type='CustomDataset', data_root={data!r}, data_prefix='train',
                 pipeline=[dict(type='LoadImageFromFile'), dict(type='Resize', scale=32),
                           dict(type='PackInputs')]))
train_dataloader = data
test_dataloader = dict(
    batch_size=4, num_workers=0, sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(data['dataset'], data_prefix='val'))
test_evaluator, test_cfg = dict(type='Accuracy'), dict()
optim_wrapper = dict(optimizer=dict(type='AdamW', lr=1e-3))
train_cfg = dict(by_epoch=False, max_iters={iters})
default_hooks = dict(
    logger=dict(type='LoggerHook', interval=1),
    checkpoint=dict(type='mmext.SafeCheckpointHook', by_epoch=False, interval=2,
                    max_keep_ckpts=2))
log_processor = dict(by_epoch=False)
randomness = dict(seed=0)
"""


@pytest.fixture(scope='module')
def digits(root_dir, tmp_path_factory):
    out = tmp_path_factory.mktemp('data') / 'digits'
    subprocess.run(
        [sys.executable, root_dir / 'tools' / 'dataset_converters' / 'digits.py', '--out', out,
         '--train', '2', '--val', '2'], check=True, capture_output=True)
    return out / 'classification'


def tool_in_process(root_dir, monkeypatch, capsys, name, *args):
    import importlib.util
    spec = importlib.util.spec_from_file_location(f'{name}_tool', root_dir / f'tools/{name}.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, 'argv', [name, *map(str, args)])
    with pytest.raises(SystemExit) as end, module.one_clear_error():
        module.main()
    return end.value.code, capsys.readouterr().err.strip().splitlines()[-1]


class Attack:
    """Unpickled without care, this creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_bad_files_get_one_clear_error_and_run_nothing(
        root_dir, monkeypatch, capsys, digits, tmp_path):
    config, trap = tmp_path / 'config.py', tmp_path / 'executed'
    config.write_text(CONFIG.format(data=str(digits), iters=2))
    files = {name: tmp_path / f'{name}.pth' for name in ('zip', 'plain', 'cut', 'empty', 'text')}
    attack = dict(meta={}, state_dict=dict(a=torch.ones(1000)), extra=Attack(trap))
    torch.save(attack, files['zip'])
    files['plain'].write_bytes(pickle.dumps(attack))
    files['cut'].write_bytes(files['zip'].read_bytes()[:2000])
    files['empty'].touch()
    files['text'].write_text('not found')
    monkeypatch.delenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', raising=False)
    monkeypatch.setenv('TORCH_FORCE_WEIGHTS_ONLY_LOAD', '')
    for name, path in files.items():
        for tool, args in (('test', [config, path]), ('train', [config, '--resume', path])):
            code, line = tool_in_process(
                root_dir, monkeypatch, capsys, tool, *args, '--work-dir', tmp_path / 'run')
            assert code == 1 and line.startswith(f'error: {path} is '), line
            expected = 'damaged'
            if name == 'zip':
                expected = 'without executing code in it (posix.mkdir). If it is your own'
                assert 'TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1' in line
            assert expected in line, line
            assert not trap.exists()
    monkeypatch.setenv('TORCH_FORCE_WEIGHTS_ONLY_LOAD', '0')
    torch.load(files['zip'], weights_only=False)
    assert trap.exists()  # the file really is an attack


def test_resume_finds_a_moved_work_dir(root_dir, monkeypatch, capsys, digits, tmp_path):
    config, run = tmp_path / 'config.py', tmp_path / 'run'
    config.write_text(CONFIG.format(data=str(digits), iters=2))
    run.mkdir()
    (run / 'last_checkpoint').write_text('/gone/run/iter_2.pth')
    code, line = tool_in_process(
        root_dir, monkeypatch, capsys, 'train', config, '--resume', '--work-dir', run)
    assert code == 1 and "/gone/run/iter_2.pth', which does not exist" in line
    (run / 'iter_2.pth').write_bytes(b'')
    code, line = tool_in_process(
        root_dir, monkeypatch, capsys, 'train', config, '--resume', '--work-dir', run)
    assert code == 1 and line.startswith(f'error: {run / "iter_2.pth"} is damaged')


def test_a_checkpoint_of_other_classes_is_not_tested(
        root_dir, monkeypatch, capsys, digits, tmp_path):
    from mmext.cli.launch import build_model, load_config
    config, path = tmp_path / 'config.py', tmp_path / 'other.pth'
    config.write_text(CONFIG.format(data=str(digits), iters=2))
    state = build_model(load_config(str(config), None, None, 'none')).state_dict()
    state['head.fc.weight'], state['head.fc.bias'] = torch.ones(5, 32), torch.ones(5)
    torch.save(dict(state_dict=state, meta=dict(iter=2, epoch=0), optimizer={}), path)
    for tool, args in (('test', [config, path]), ('train', [config, '--resume', path])):
        code, line = tool_in_process(
            root_dir, monkeypatch, capsys, tool, *args, '--work-dir', tmp_path / 'run')
        assert code == 1 and '2 have another shape (head.fc.weight, head.fc.bias)' in line, line


RUNS = """
import importlib.util, os, random, signal, sys, time, torch
torch.set_num_threads(1)
import mmext.registry, mmpretrain.models, mmpretrain.datasets, mmpretrain.evaluation
spec = importlib.util.spec_from_file_location('train_tool', sys.argv[1])
tool = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)
config, work_dir, runs, seed = sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
random.seed(seed)


def start(log, *arguments):
    child = os.fork()
    if child:
        return child
    out = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(out, 1), os.dup2(out, 2)
    sys.argv = ['train.py', config, *arguments]
    with tool.one_clear_error():
        tool.main()
    os._exit(0)


for number in range(runs):
    log = f'{work_dir}.{number}.log'
    begin = time.time()
    child = start(log, '--work-dir', work_dir, '--resume')
    if number % 2:  # any moment of the run, its start included
        time.sleep(random.uniform(0, startup + .6))
    else:  # any moment of the training
        while not os.path.exists(log) or 'Iter(train)' not in open(log).read():
            time.sleep(.01)
            if os.waitpid(child, os.WNOHANG)[0]:
                raise SystemExit(open(log).read())
        startup = time.time() - begin
        time.sleep(random.uniform(0, .6))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print(number, *sorted(os.listdir(work_dir)), flush=True)

end = int(open(work_dir + '/last_checkpoint').read().split('iter_')[1][:-4]) + 10
for folder, log, resume in ((work_dir, f'{work_dir}.{runs}.log', ['--resume']),
                            (work_dir + '_whole', work_dir + '_whole.log', [])):
    child = start(log, '--work-dir', folder, *resume, '--cfg-options', f'train_cfg.max_iters={end}')
    if os.waitpid(child, 0)[1]:
        raise SystemExit(open(log).read())
print('end', *sorted(os.listdir(work_dir)), flush=True)
"""


@pytest.mark.slow
def test_killed_twenty_times_at_random_moments(root_dir, digits, tmp_path):
    """kill -9 while starting, training or saving: every run goes on right behind the last save,
    what is on disk is complete all the time, and the end is that of a run without a stop."""
    config, run = tmp_path / 'config.py', tmp_path / 'run'
    config.write_text(CONFIG.format(data=str(digits), iters=100_000))
    kills = 20
    seed = random.randrange(1000)
    result = subprocess.run(
        [sys.executable, '-c', RUNS, root_dir / 'tools' / 'train.py', config, run, str(kills),
         str(seed)], capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, 'OMP_NUM_THREADS': '1'})
    assert result.returncode == 0, result.stdout + result.stderr
    done = 0
    for number in range(kills + 1):
        log = (tmp_path / f'run.{number}.log').read_text()
        seen = [int(i) for i in re.findall(r'Iter\(train\) \[ *(\d+)/', log)]
        resumed = re.search(r'resumed epoch: \d+, iter: (\d+)', log)
        if not seen and not resumed:  # killed while starting
            continue
        start = int(resumed.group(1)) if resumed else 0
        # saved every 2, after the log: the iteration logged last may not have been saved
        saved = {done - 1} if done % 2 else {done, max(done - 2, 0)}
        assert start in saved, (seed, number, start, done)
        assert seen == list(range(start + 1, start + 1 + len(seen))), (seed, number)
        done = seen[-1] if seen else start
    assert done == start + 10 and start > 0
    for line in result.stdout.splitlines():
        files = line.split()[1:]
        assert sum(name.endswith('.pth') for name in files) <= 3 + kills // 4, line
    last = Path((run / 'last_checkpoint').read_text())
    assert last.name == f'iter_{done}.pth'
    for path in run.glob('*.pth'):
        read_checkpoint(str(path))
    assert not list(run.glob('*' + UNFINISHED))

    resumed, whole = (read_checkpoint(str(tmp_path / folder / last.name))
                      for folder in ('run', 'run_whole'))
    torch.testing.assert_close(resumed['state_dict'], whole['state_dict'])
    torch.testing.assert_close(resumed['optimizer']['state'], whole['optimizer']['state'])
    history = [content['message_hub']['log_scalars']['train/loss'] for content in (resumed, whole)]
    torch.testing.assert_close(history[0].data[0], history[1].data[0])
