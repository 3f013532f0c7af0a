"""Hooks that mmengine lacks."""

import bisect
import contextlib
import json
import os
import os.path as osp
import shutil

import torch
from mmengine.dist import all_gather_object, get_rank, get_world_size, is_main_process
from mmengine.fileio import LocalBackend
from mmengine.hooks import CheckpointHook
from mmengine.runner import EpochBasedTrainLoop

from mmext.engine.run_state import not_finite, random_state, set_random_state
from mmext.registry import HOOKS

UNFINISHED = '.unfinished'


PATIENCE = 10  # iterations without a finite loss in a row, where a loss scaler skips them


class CheckpointError(RuntimeError):
    """A checkpoint could not be written; the message says what is left and how to go on."""


class Diverged(RuntimeError):
    """The loss or the weights are not finite; the message says what is left."""


def validates(runner, by_epoch: bool) -> bool:
    """Whether the loop validates right after what it saves now, and so may not get to it."""
    loop = runner.train_loop
    if runner.val_loop is None or isinstance(loop, EpochBasedTrainLoop) != by_epoch:
        return False
    done, end = (loop.epoch + 1, loop.max_epochs) if by_epoch else (loop.iter + 1, loop.max_iters)
    interval = loop.dynamic_intervals[bisect.bisect(loop.dynamic_milestones, done + 1) - 1]
    return done >= loop.val_begin and (done % interval == 0 or done == end)


@HOOKS.register_module()
class SafeCheckpointHook(CheckpointHook):
    """mmengine's hook, with nothing lost when a run ends at the wrong moment.

    - A checkpoint on disk is complete: it is written under another name and then renamed, as is
      ``last_checkpoint``. Older ones go only after that, where mmengine removes them first; so
      there must be room for one checkpoint more than ``max_keep_ckpts``.
    - A full disk ends the run with one message; the checkpoints before it stay as they were.
    - Training ends at the first loss that is not finite (under loss scaling, which skips such
      steps, at the tenth in a row), and weights or optimizer states with NaN or infinity are
      never saved. So the last checkpoint on disk is one from before.
    - A resumed run draws the random numbers that the run would have drawn: the states of all
      generators are in the checkpoint, for every process, and validation does not touch them.
      Those of data workers cannot be: with ``num_workers`` > 0 augmentation starts anew.
    - A run that was killed between a checkpoint and the end of its validation validates when it
      is resumed, before anything else.
    - An evaluation without the ``save_best`` key does not end the run. CocoMetric returns nothing
      at all, or nothing for one kind, while a young detector finds no object; mmengine's hook
      then raises KeyError. Here such an evaluation is skipped with a warning.

    Arguments are those of ``CheckpointHook``. Storage other than local disks is left to mmengine's
    way of writing.

    Raises:
        CheckpointError: a checkpoint could not be written.
        Diverged: the loss or the weights are not finite.
    """

    resumed: dict | None = None
    random_states: list | None = None
    before_validation: dict | None = None
    owes_validation = False
    bad_losses = 0

    def after_load_checkpoint(self, runner, checkpoint) -> None:
        self.resumed = checkpoint if runner._resume else None

    def before_train(self, runner) -> None:
        super().before_train(runner)
        self.last_complete = None
        self.bad_losses = 0
        # constants that are infinite by intention, such as the start of a running minimum
        self.never_finite = {
            name.removeprefix('module.') for name in not_finite(dict(runner.model.named_buffers()))}
        # iterators draw a seed; from generators of their own it is no matter when they start
        for loop in filter(None, (runner.train_loop, runner.val_loop)):
            loop.dataloader.generator = torch.Generator().manual_seed(runner.seed)
        if self.resumed is not None:
            self._go_on(runner, self.resumed.get('random_states'),
                        self.resumed['meta'].get('validation_due'))
            self.resumed = None
        if self._is_local() and is_main_process() and osp.isdir(self.out_dir):
            for name in os.listdir(self.out_dir):  # of a run that was killed while saving
                if name.endswith(UNFINISHED):
                    _remove(osp.join(self.out_dir, name))

    def _is_local(self) -> bool:
        return isinstance(self.file_backend, LocalBackend)

    # ------------------------------------------------------------------------------- divergence
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        loss = torch.as_tensor((outputs or {}).get('loss', 0.))
        self.bad_losses = 0 if torch.isfinite(loss).all() else self.bad_losses + 1
        scaler = getattr(runner.optim_wrapper, 'loss_scaler', None)
        skips = scaler is not None and scaler.is_enabled()
        if self.bad_losses >= (PATIENCE if skips else 1):
            bad = [f'{name} = {float(value.detach().mean()):g}' for name, value in outputs.items()
                   if 'loss' in name and not torch.isfinite(value).all()]
            since = f' for {PATIENCE} iterations' if skips else ''
            raise Diverged(
                f'iteration {runner.iter + 1}: {", ".join(bad)}{since}. {self._kept(runner)}')
        super().after_train_iter(runner, batch_idx, data_batch, outputs)

    def before_save_checkpoint(self, runner, checkpoint: dict) -> None:
        states = {key: checkpoint.get(key) for key in ('state_dict', 'ema_state_dict', 'optimizer')}
        bad = [name for name in not_finite(states)
               if name.split('.', 1)[1].removeprefix('module.') not in self.never_finite]
        if bad:
            raise Diverged(
                f'iteration {runner.iter}: {len(bad)} weights or optimizer states are not finite '
                f'({", ".join(bad[:3])}, ...) and not saved. {self._kept(runner)}')
        if self.random_states:
            checkpoint['random_states'] = self.random_states

    def _kept(self, runner) -> str:
        note = osp.join(runner.work_dir, 'last_checkpoint')
        kept = 'nothing was saved yet'
        if osp.exists(note):
            with open(note) as file:
                kept = f'the last checkpoint, {file.read().strip()}, is from before'
        rate = max(max(values) for values in runner.optim_wrapper.get_lr().values())
        return (f'The training diverged and was stopped; {kept}. Lower the learning rate '
                f'({rate:g} at most now), warm up longer or clip gradients.')

    # ------------------------------------------------------------------------------ going on
    def _go_on(self, runner, states: list | None, validation_due: bool | None) -> None:
        """Restore the random states, and hold the validation that the checkpoint waits for."""
        if states is None or len(states) != get_world_size():
            runner.logger.warning(
                'The checkpoint has no random states for '
                f'{get_world_size()} processes: augmentation and dropout differ from those of a '
                'run without interruption.')
        else:
            set_random_state(states[get_rank()])
        self.owes_validation = (
            bool(validation_due) and runner.val_loop is not None
            and runner.iter not in validated_iterations(runner.work_dir))

    def before_train_epoch(self, runner) -> None:
        self._pay(runner)

    def after_train(self, runner) -> None:
        self._pay(runner)  # of a run that was killed in its last validation
        super().after_train(runner)

    def _pay(self, runner) -> None:
        if not self.owes_validation:
            return
        self.owes_validation = False
        runner.logger.info('The run ended before the validation of this checkpoint: doing it now.')
        step = runner.epoch if self.by_epoch else runner.iter
        self.last_ckpt = osp.join(self.out_dir, self.filename_tmpl.format(step))
        runner.val_loop.run()

    def before_val(self, runner) -> None:
        self.before_validation = random_state()

    def after_val(self, runner) -> None:
        if self.before_validation is not None:
            set_random_state(self.before_validation)
            self.before_validation = None

    def _save_checkpoint_with_step(self, runner, step, meta) -> None:
        self.random_states = all_gather_object(self.before_validation or random_state())
        # once more in a validation: then it is held
        meta['validation_due'] = self.before_validation is None and validates(
            runner, self.by_epoch)
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
        except Diverged:
            raise
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


def validated_iterations(work_dir: str) -> set[int]:
    """What ``mmext.RunArtifactsHook`` noted in this folder; empty without it."""
    try:
        with open(osp.join(work_dir, 'metrics.json')) as file:
            return {entry['iter'] for entry in json.load(file)['history']}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _remove(path) -> None:
    if osp.isdir(path):
        shutil.rmtree(path)
    elif osp.exists(path):
        os.remove(path)
