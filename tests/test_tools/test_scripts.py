"""Shell scripts end what they started, and evaluate nothing of the paths they are given."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / 'tools'

WORKER = '''
import os, pathlib, signal, sys, time
pathlib.Path(os.environ['NOTE'] + str(os.getpid())).write_text(' '.join(sys.argv[1:]))
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    time.sleep(60)
except KeyboardInterrupt:
    sys.exit(130)
'''


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f'/proc/{pid}/stat') as file:
        return file.read().split()[2] != 'Z'


@pytest.fixture
def started(tmp_path):
    """Starts a script; waits until ``count`` processes that it runs are there."""
    running = []

    def start(command, count, cwd, **env):
        env = {**os.environ, 'NOTE': str(tmp_path / 'started.'), 'PYTHON': sys.executable, **env}
        process = subprocess.Popen(
            list(map(str, command)), cwd=cwd, env=env, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        running.append(process)
        deadline = time.time() + 60
        while len(found := list(tmp_path.glob('started.*'))) < count:
            assert time.time() < deadline and process.poll() is None, process.communicate()[0]
            time.sleep(.05)
        return process, [int(path.suffix[1:]) for path in found]

    yield start
    for process in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def ends(pids):
    deadline = time.time() + 20
    while any(map(alive, pids)) and time.time() < deadline:
        time.sleep(.05)
    return not any(map(alive, pids))


@pytest.mark.parametrize('script, arguments', [
    ('dist_train', ['config.py', '2']), ('dist_test', ['config.py', 'x.pth', '2'])])
def test_terminating_the_launcher_ends_its_processes(tmp_path, started, script, arguments):
    folder = tmp_path / "a folder; with $(touch executed) 'signs'"
    folder.mkdir()
    shutil.copy(TOOLS / f'{script}.sh', folder)
    for name in ('train.py', 'test.py'):
        (folder / name).write_text(WORKER)
    process, pids = started(['bash', folder / f'{script}.sh', *arguments], 2, tmp_path,
                            MASTER_PORT='29731')
    process.terminate()
    assert ends([process.pid, *pids])
    assert not (tmp_path / 'executed').exists()


def test_slurm_scripts_become_srun(tmp_path):
    srun = tmp_path / 'srun'
    srun.write_text('#!/bin/sh\necho "pid $$"; for word; do echo "$word"; done\n')
    srun.chmod(0o755)
    for script in ('slurm_train', 'slurm_test'):
        process = subprocess.Popen(
            ['bash', TOOLS / f'{script}.sh', 'part', 'job', 'a config.py', 'there', '--amp'],
            env={**os.environ, 'PATH': f'{tmp_path}:{os.environ["PATH"]}'},
            stdout=subprocess.PIPE, text=True)
        out = process.communicate()[0].splitlines()
        assert out[0] == f'pid {process.pid}' and 'a config.py' in out and out[-1] == '--amp'


@pytest.mark.parametrize('signal_, code', [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_quickstart_ends_its_training(tmp_path, started, signal_, code):
    root = tmp_path / 'a checkout'
    shutil.copytree(TOOLS / 'dev', root / 'tools' / 'dev')
    (root / 'tools' / 'dev' / 'env_state.py').write_text('')  # nothing to install
    (root / 'tools' / 'train.py').write_text(WORKER)
    (root / 'tools' / 'dataset_converters').mkdir()
    (root / 'tools' / 'dataset_converters' / 'digits.py').write_text('')
    process, pids = started(['bash', root / 'tools' / 'dev' / 'quickstart.sh'], 1, tmp_path)
    process.send_signal(signal_)
    assert ends([process.pid, *pids]) and process.wait() == code
    assert 'goes on where it stopped' in process.communicate()[0]


def test_env_evaluates_no_path(tmp_path):
    """The checkout's path, and that of the interpreter in it, have signs that a shell acts on."""
    root = tmp_path / 'my "$(touch executed)" `touch executed` checkout; $HOME'
    shutil.copytree(TOOLS / 'dev', root / 'tools' / 'dev')
    python = root / '.venv' / 'bin' / 'python'
    python.parent.mkdir(parents=True)
    # asked for pip it notes its arguments; everything else the real interpreter does
    python.write_text(f'''#!/bin/bash
if [ "$1 $2 $3" = "-m pip install" ]; then
    printf '%s\\n' "$@" >{tmp_path}/pip; rm -f "{tmp_path}/wanted"; exit
fi
exec {sys.executable} "$@"
''')
    python.chmod(0o755)
    (tmp_path / 'wanted').touch()
    (root / 'tools' / 'dev' / 'env_state.py').write_text(
        'import pathlib, sys\n'
        f'if pathlib.Path({str(tmp_path / "wanted")!r}).exists():\n'
        '    print("-e", sys.argv[1] + "[tests]", sep="\\n")\n')
    env = {key: value for key, value in os.environ.items()
           if key not in ('PYTHON', 'VIRTUAL_ENV', 'CONDA_PREFIX')}
    done = subprocess.run(
        ['bash', '-c', 'source "$0"/tools/dev/env.sh; ensure_env tests; echo "$PYTHON"', str(root)],
        cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(python)
    assert (tmp_path / 'pip').read_text().splitlines()[-2:] == ['-e', f'{root}[tests]']
    assert not list(tmp_path.rglob('executed'))


def test_launchers_share_the_cores(tmp_path):
    """Cores / processes threads each, at least one, and what is set stays."""
    python = tmp_path / 'python'
    python.write_text('#!/bin/sh\necho "$OMP_NUM_THREADS"\n')
    python.chmod(0o755)
    cores = len(os.sched_getaffinity(0))
    env = {key: value for key, value in os.environ.items() if key != 'OMP_NUM_THREADS'}
    env['PYTHON'] = str(python)

    def threads(script, *arguments, **more):
        return subprocess.run(['bash', TOOLS / script, *arguments], env={**env, **more}, text=True,
                              capture_output=True, check=True).stdout.strip()
    for script, before in (('dist_train.sh', ['c.py']), ('dist_test.sh', ['c.py', 'x.pth'])):
        assert threads(script, *before, '1') == str(cores)
        assert threads(script, *before, str(cores * 2)) == '1'
        assert threads(script, *before, '2', OMP_NUM_THREADS='7') == '7'
