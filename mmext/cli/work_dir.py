"""One work dir, one run at a time; what earlier runs left there is kept apart."""

import contextlib
import fcntl
import json
import os
import re
import shlex
import socket
import sys
import time
from pathlib import Path

from mmengine.config import Config

from mmext.cli.clear_errors import interrupt_behind

from .config_check import ConfigError

RESULTS = re.compile(
    r'metrics\.json|classes\.json|(curves|predictions|classes)\.png|last_checkpoint|'
    r'(best_.+|epoch_\d+|iter_\d+)\.pth')
_held: dict[str, object] = {}


def claim(cfg: Config) -> None:
    """Lock the work dir for this run and, unless it resumes, move earlier results aside.

    Acts in the first process of a distributed run alone.

    Raises:
        ConfigError: another run works in it, or what this run starts from would be moved.
    """
    rank = next((os.environ[name] for name in (
        'RANK', 'SLURM_PROCID', 'OMPI_COMM_WORLD_RANK') if name in os.environ), '0')
    if rank != '0' and cfg.get('launcher', 'none') != 'none':
        return
    folder = Path(cfg.work_dir)
    folder.mkdir(parents=True, exist_ok=True)
    lock(folder)
    if not cfg.get('resume'):
        keep_earlier_results(folder, cfg)


def lock(folder: Path) -> None:
    """Hold ``folder/.lock`` until this process ends, however it ends.

    A POSIX record lock: the system releases it with the process, workers that outlive it do not
    inherit it, and it holds across the nodes of a network file system.

    Raises:
        ConfigError: another process holds it; the message names process and host.
    """
    path = folder.resolve() / '.lock'
    if str(path) in _held:  # a second run of the same process
        return
    file = open(path, 'a+')  # noqa: SIM115  (kept open: closing it would release the lock)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        try:
            holder = 'process {pid} on {host} since {since} ({command})'.format(
                **json.loads(file.read()))
        except (ValueError, KeyError):
            holder = 'another process'
        file.close()
        raise ConfigError(f'{folder} is in use: {holder} trains there. Wait for its end, or give '
                          'another --work-dir.') from None
    file.truncate(0)
    json.dump({'pid': os.getpid(), 'host': socket.gethostname(),
               'since': time.strftime('%Y-%m-%d %H:%M:%S'), 'command': shlex.join(sys.argv)}, file)
    file.flush()
    _held[str(path)] = file


def keep_earlier_results(folder: Path, cfg: Config) -> None:
    """Move the results of a run that this one does not resume to ``folder/earlier/<its time>``.

    Raises:
        ConfigError: this run starts from one of these files.
    """
    results = [path for path in folder.iterdir() if RESULTS.fullmatch(path.name)]
    if not results:
        return
    ended = time.strftime(
        '%Y%m%d_%H%M%S', time.localtime(max(path.stat().st_mtime for path in results)))
    target = folder / 'earlier' / ended
    number = 1
    while target.exists():
        number += 1
        target = folder / 'earlier' / f'{ended}_{number}'
    moving = {path.resolve() for path in results}
    for name in _files_in(cfg.to_dict()):
        if Path(name).resolve() in moving:
            raise ConfigError(f'{name}, which this run starts from, lies in its work dir among '
                              'the results of an earlier run: give another --work-dir.')
    target.mkdir(parents=True)
    for path in results:
        path.rename(target / path.name)
    print(f'{folder} had results of an earlier run: moved to {target} (--resume would have '
          'continued it)', file=sys.stderr)


def _files_in(node):
    """Every string of a config that may name a checkpoint."""
    if isinstance(node, str) and node.endswith(('.pth', '.pt', '.safetensors')):
        yield node
    for value in node.values() if isinstance(node, dict) else (
            node if isinstance(node, (list, tuple)) else ()):
        yield from _files_in(value)


@contextlib.contextmanager
def saying_what_is_saved(work_dir: str):
    """After Ctrl-C: how to go on, which depends on whether something was saved yet."""
    try:
        yield
    except (KeyboardInterrupt, Exception) as error:
        if interrupt_behind(error) is None:
            raise
        note = Path(work_dir) / 'last_checkpoint'
        raise KeyboardInterrupt(
            f'continue from {Path(note.read_text().strip()).name} with the same command and '
            '--resume' if note.exists() else 'nothing was saved yet: start it again') from None
