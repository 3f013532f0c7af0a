"""Hooks that mmengine lacks."""

import contextlib
import os
import os.path as osp
import shutil

from mmengine.dist import is_main_process
from mmengine.fileio import LocalBackend
from mmengine.hooks import CheckpointHook

from mmext.registry import HOOKS

UNFINISHED = '.unfinished'


class CheckpointError(RuntimeError):
    """A checkpoint could not be written; the message says what is left and how to go on."""


@HOOKS.register_module()
class SafeCheckpointHook(CheckpointHook):
    """mmengine's hook, with nothing lost when a run ends at the wrong moment.

    - A checkpoint on disk is complete: it is written under another name and then renamed, as is
      ``last_checkpoint``. Older ones go only after that, where mmengine removes them first; so
      there must be room for one checkpoint more than ``max_keep_ckpts``.
    - A full disk ends the run with one message; the checkpoints before it stay as they were.
    - An evaluation without the ``save_best`` key does not end the run. CocoMetric returns nothing
      at all, or nothing for one kind, while a young detector finds no object; mmengine's hook
      then raises KeyError. Here such an evaluation is skipped with a warning.

    Arguments are those of ``CheckpointHook``. Storage other than local disks is left to mmengine's
    way of writing.

    Raises:
        CheckpointError: a checkpoint could not be written.
    """

    def before_train(self, runner) -> None:
        super().before_train(runner)
        self.last_complete = None
        if self._is_local() and is_main_process() and osp.isdir(self.out_dir):
            for name in os.listdir(self.out_dir):  # of a run that was killed while saving
                if name.endswith(UNFINISHED):
                    _remove(osp.join(self.out_dir, name))

    def _is_local(self) -> bool:
        return isinstance(self.file_backend, LocalBackend)

    def _save_checkpoint_with_step(self, runner, step, meta) -> None:
        if not self._is_local():
            super()._save_checkpoint_with_step(runner, step, meta)
            return
        outdated = None
        if self.max_keep_ckpts > 0 and step not in self.keep_ckpt_ids:
            if len(self.keep_ckpt_ids) == self.max_keep_ckpts:
                outdated = self.filename_tmpl.format(self.keep_ckpt_ids.popleft())
            self.keep_ckpt_ids.append(step)
            runner.message_hub.update_info('keep_ckpt_ids', list(self.keep_ckpt_ids))
        filename = self.filename_tmpl.format(step)
        self.last_ckpt = osp.join(self.out_dir, filename)
        runner.message_hub.update_info('last_ckpt', self.last_ckpt)
        self._save(
            runner, self.out_dir, filename, self.file_client_args,
            save_optimizer=self.save_optimizer, save_param_scheduler=self.save_param_scheduler,
            meta=meta, by_epoch=self.by_epoch, backend_args=self.backend_args, **self.args)
        if not is_main_process():
            return
        note = osp.join(runner.work_dir, 'last_checkpoint')
        with self._one_message(note):
            with open(note + UNFINISHED, 'w') as file:
                file.write(self.last_ckpt)
            os.replace(note + UNFINISHED, note)
        self.last_complete = self.last_ckpt
        if outdated is not None:
            _remove(osp.join(self.out_dir, outdated))

    def _save(self, runner, out_dir, filename, *args, **kwargs) -> None:
        """``runner.save_checkpoint``, complete or not at all; runs in every process."""
        path = osp.join(out_dir, filename)
        with self._one_message(path):
            runner.save_checkpoint(out_dir, filename + UNFINISHED, *args, **kwargs)
            if not is_main_process():
                return
            if osp.isfile(path + UNFINISHED):
                with open(path + UNFINISHED, 'rb') as file:
                    os.fsync(file.fileno())
            elif osp.isdir(path):  # DeepSpeed and sharded states are folders
                shutil.rmtree(path)
            os.replace(path + UNFINISHED, path)

    @contextlib.contextmanager
    def _one_message(self, path):
        try:
            yield
        except (OSError, RuntimeError) as error:
            if is_main_process():
                _remove(path + UNFINISHED)
            kept = (f'the last complete checkpoint, {self.last_complete}, is untouched'
                    if self.last_complete else 'no earlier checkpoint of this run was touched')
            raise CheckpointError(
                f'{path} could not be saved ({error}); {kept}. Make room and continue with the '
                'same command and --resume.') from error

    def _save_best_checkpoint(self, runner, metrics: dict) -> None:
        if not self.save_best:
            return
        missing = [key for key in self.key_indicators if key != 'auto' and key not in metrics]
        if missing or not metrics:
            runner.logger.warning(
                f'this evaluation has no {missing or "metric"} (it has {sorted(metrics)}); the '
                'best checkpoint stays as it is')
        if not metrics:
            return
        # mmengine passes over a score of None
        metrics = {**dict.fromkeys(missing), **metrics}
        if not self._is_local():
            super()._save_best_checkpoint(runner, metrics)
            return
        later = _RemoveLater(self.file_backend)
        self.file_backend = later
        try:
            super()._save_best_checkpoint(_SavesSafely(runner, self._save), metrics)
        finally:
            self.file_backend = later.backend
        kept = {getattr(self, 'best_ckpt_path', None),
                *getattr(self, 'best_ckpt_path_dict', {}).values()}
        for path in later.paths:
            if path not in kept:
                _remove(path)


class _SavesSafely:
    """A runner whose ``save_checkpoint`` is the hook's."""

    def __init__(self, runner, save):
        self.runner, self.save = runner, save

    def __getattr__(self, name):
        return getattr(self.runner, name)

    def save_checkpoint(self, out_dir, filename, *args, **kwargs):
        if filename.endswith(UNFINISHED):
            self.runner.save_checkpoint(out_dir, filename, *args, **kwargs)
        else:
            self.save(self.runner, out_dir, filename, *args, **kwargs)


class _RemoveLater(LocalBackend):
    """Collects what is to be removed instead of removing it."""

    def __init__(self, backend):
        self.backend, self.paths = backend, []

    def remove(self, filepath):
        self.paths.append(filepath)

    rmtree = remove


def _remove(path) -> None:
    if osp.isdir(path):
        shutil.rmtree(path)
    elif osp.exists(path):
        os.remove(path)
