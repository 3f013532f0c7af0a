"""One work dir, one run; earlier results stay; Ctrl-C says what is there."""

import os
import signal
import subprocess
import sys

import pytest
from mmengine.config import Config

from mmext.cli import work_dir
from mmext.cli.clear_errors import one_clear_error
from mmext.cli.config_check import ConfigError
from mmext.cli.work_dir import keep_earlier_results, saying_what_is_saved

HOLD = """
import os, sys, time
from pathlib import Path
from mmext.cli.work_dir import lock
lock(Path(sys.argv[1]))
if os.fork() == 0:  # a data worker that outlives the run
    time.sleep(60)
print('held', os.getpid(), flush=True)
time.sleep(60)
"""


def test_a_second_run_is_refused_until_the_first_ends_however(tmp_path):
    holder = subprocess.Popen([sys.executable, '-c', HOLD, tmp_path], stdout=subprocess.PIPE,
                              text=True, start_new_session=True)
    try:
        assert holder.stdout.readline().startswith('held')
        with pytest.raises(ConfigError, match=rf'is in use: process {holder.pid} on .*--work-dir'):
            work_dir.lock(tmp_path)
        holder.kill()
        holder.wait()
        work_dir.lock(tmp_path)  # the worker is still there
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
        holder.stdout.close()


def test_results_of_an_earlier_run_are_kept_apart(tmp_path, capsys):
    def write(text):
        for name in ('metrics.json', 'epoch_2.pth', 'best_x_epoch_1.pth', 'last_checkpoint',
                     'notes.txt'):
            (tmp_path / name).write_text(text)

    keep_earlier_results(tmp_path, Config())
    assert not list(tmp_path.iterdir())
    for text in ('first', 'second'):
        write(text)
        keep_earlier_results(tmp_path, Config())
        assert {p.name for p in tmp_path.iterdir()} == {'earlier', 'notes.txt'}
        assert '--resume would have continued it' in capsys.readouterr().err
    kept = sorted(p.read_text() for p in tmp_path.glob('earlier/*/metrics.json'))
    assert kept == ['first', 'second']
    assert len(list(tmp_path.glob('earlier/*/*'))) == 8


def test_a_run_does_not_move_what_it_starts_from(tmp_path, monkeypatch):
    (tmp_path / 'epoch_2.pth').touch()
    monkeypatch.chdir(tmp_path)
    cfg = Config(dict(model=dict(backbone=dict(init_cfg=dict(checkpoint='./epoch_2.pth')))))
    with pytest.raises(ConfigError, match='which this run starts from'):
        keep_earlier_results(tmp_path, cfg)
    assert (tmp_path / 'epoch_2.pth').exists()


@pytest.mark.parametrize('saved', [False, True])
@pytest.mark.parametrize('inside', [False, True])
def test_interrupt_says_what_is_saved(tmp_path, capsys, saved, inside):
    """mmengine formats the config for each checkpoint and turns Ctrl-C into a SyntaxError with
    the whole config in it."""
    if saved:
        (tmp_path / 'last_checkpoint').write_text('/somewhere/epoch_3.pth')

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as end, one_clear_error(), saying_what_is_saved(tmp_path):
        if inside:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr('yapf.yapflib.yapf_api.FormatCode', interrupted)
                Config(dict(a=1)).pretty_text  # noqa: B018
        interrupted()
    assert end.value.code == 130
    assert capsys.readouterr().err.strip().splitlines() == [
        'interrupted; ' + ('continue from epoch_3.pth with the same command and --resume' if saved
                           else 'nothing was saved yet: start it again')]
