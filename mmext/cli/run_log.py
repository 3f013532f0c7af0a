"""What a run says before its first iteration: a summary; what fills screens goes to a file."""

import importlib.util
import logging
import re
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.dist import is_main_process
from mmengine.hooks import CheckpointHook, Hook
from mmengine.model import is_model_wrapper
from mmengine.registry import RUNNERS

import mmext
from mmext.cli.config_check import ConfigError
from mmext.cli.package_files import shipped
from mmext.compat.messages import HARMLESS, silence_coco

DETAILS = 'environment.txt'
LONG = re.compile(
    r'\n-+\nSystem environment:|Hooks will be executed in the following order|mmext set up:|'
    r'paramwise_options -- |Distributed training is not used|Checkpoints will be saved to')


class Details(logging.Filter):
    """Moves long records of a runner's logger to a file beside its log, and drops harmless ones.

    The config is in none of them: mmengine writes it to the work dir by itself.
    """

    def __init__(self, path: Path):
        super().__init__()
        self.path = path
        self.writes = is_main_process()

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if record.levelno > logging.WARNING:
            return True
        if record.levelno == logging.INFO and LONG.match(text):
            if self.writes:
                with open(self.path, 'a') as file:
                    file.write(text.strip('\n') + '\n')
            return False
        return not (HARMLESS.match(text) or text.startswith('Config:\n'))


class _ShortLog:
    """Part of a runner class: a logger that passes on what people read."""

    def _log_env(self, *args) -> None:  # the first that a runner does with its logger
        self.logger.addFilter(Details(Path(self.logger.log_file).with_name(DETAILS)))
        super()._log_env(*args)


class SummaryHook(Hook):
    """Logs a few lines about the run that starts."""

    priority = 'LOWEST'

    def before_train(self, runner) -> None:
        for line in summary(runner):
            runner.logger.info(line)


def summary(runner) -> list[str]:
    """Lines about a runner whose model, data and optimizer are built."""
    model = runner.model.module if is_model_wrapper(runner.model) else runner.model
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    total, trained = sum(n for n, _ in sizes), sum(n for n, grad in sizes if grad)
    device = (torch.cuda.get_device_name() if torch.cuda.is_available()
              else f'CPU with {torch.get_num_threads()} thread(s)')
    backbone = getattr(model, 'backbone', None)
    loader = runner.train_dataloader
    length = (f'{runner.max_epochs} epochs of {len(loader)} iterations'
              if runner.train_loop.__class__.__name__.startswith('Epoch')
              else f'{runner.max_iters} iterations')
    lines = [
        f'mmext {mmext.__version__}, torch {torch.__version__}, {device}, '
        f'processes: {runner.world_size}, seed {runner.seed}',
        f'model: {type(model).__name__}'
        + (f' on {type(backbone).__name__}' if backbone is not None else '')
        + f', {total / 1e6:.2f} M parameters'
        + (f', {trained / 1e6:.2f} M trained' if trained < total else ''),
        f'data: {len(loader.dataset):,} images in batches of {loader.batch_size}'
        + (f' x {runner.world_size}' if runner.world_size > 1 else '') + f', {length}'
        + (f'; validation {len(runner.val_dataloader.dataset):,} images'
           if runner.val_loop is not None else '')]
    optimizer = getattr(runner.optim_wrapper, 'optimizer', None)
    if optimizer is not None:
        rates = sorted({group.get('initial_lr', group['lr']) for group in optimizer.param_groups})
        lines.append(f'optimizer: {type(optimizer).__name__}, learning rate '
                     + ' to '.join(f'{rate:g}' for rate in dict.fromkeys((rates[0], rates[-1]))))
    log = Path(runner.logger.log_file)
    config = Path(runner.cfg.filename).name if runner.cfg.filename else f'{runner.timestamp}.py'
    lines.append(f'in {runner.work_dir}: {config} (the full config), '
                 f'{log.parent.name}/{log.name}, {log.parent.name}/{DETAILS} (machine, versions, '
                 'hooks, rates of single parameters)')
    return lines


def ending(runner) -> str:
    """The last line of a training: where it is, and which checkpoints are its last and best."""
    note = Path(runner.work_dir) / 'last_checkpoint'
    last = Path(note.read_text().strip()).name if note.exists() else 'none'
    hook = next((hook for hook in runner.hooks if isinstance(hook, CheckpointHook)), None)
    paths = dict(getattr(hook, 'best_ckpt_path_dict', None) or {})
    if getattr(hook, 'best_ckpt_path', None):
        paths[hook.key_indicators[0]] = hook.best_ckpt_path
    best = []
    for key, path in paths.items():
        name = 'best_score' if len(hook.key_indicators) == 1 else f'best_score_{key}'
        best.append(f'best {key} {runner.message_hub.get_info(name):.4g}: {Path(path).name}')
    if not best and runner.val_loop is not None:
        best = ["no best one is kept (default_hooks.checkpoint.save_best='auto' keeps it)"]
    return '; '.join([f'finished in {runner.work_dir}: last {last}', *best])


def log_scalars_to(cfg: Config, name: str) -> None:
    """Add a writer of scalars to the config's visualizer, in place.

    Args:
        name: a variable of ``configs/_base_/runtime/visualizers.py``, and the package it needs.

    Raises:
        ConfigError: the package is not installed.
    """
    if importlib.util.find_spec(name) is None:
        raise ConfigError(f'--log {name}: the package is not installed: pip install {name}')
    wanted = Config.fromfile(shipped('configs/_base_/runtime/visualizers.py'))[name]
    if cfg.get('visualizer') is None:
        kind = 'DetLocalVisualizer' if cfg.default_scope == 'mmdet' else 'UniversalVisualizer'
        cfg.visualizer = dict(type=kind)
    given = list(cfg.visualizer.get('vis_backends') or ())
    types = {backend['type'] for backend in given}
    cfg.visualizer.vis_backends = given + [
        backend for backend in wanted if backend['type'] not in types]


def build(cfg):
    """The runner of a config, with a log for people."""
    silence_coco()
    base = RUNNERS.get(cfg.get('runner_type', 'Runner'))
    runner = type(base.__name__, (_ShortLog, base), {}).from_cfg(cfg)
    runner.register_hook(SummaryHook())
    return runner
