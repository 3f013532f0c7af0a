"""Train a detector or a classifier; the config's ``default_scope`` decides which."""

import argparse
import os

from mmext.cli.arguments import add_cfg_options
from mmext.cli.clear_errors import one_clear_error


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='path of the config')
    parser.add_argument('--work-dir', help='where logs and checkpoints go '
                        '(default: work_dirs/<name of the config>)')
    parser.add_argument(
        '--resume', nargs='?', const='auto',
        help='go on from the last checkpoint of the work dir, or from the given one')
    parser.add_argument('--amp', action='store_true', help='automatic mixed precision')
    parser.add_argument(
        '--auto-scale-lr', action='store_true',
        help="scale all learning rates by actual batch size / the config's base batch size")
    parser.add_argument(
        '--log', choices=['tensorboard', 'wandb'],
        help='where scalars go beside the log: TensorBoard files in the work dir, or Weights & '
        'Biases')
    add_cfg_options(parser)
    parser.add_argument('--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'], default='none')
    # torch.distributed.launch passes either spelling, depending on its version
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0)
    args = parser.parse_args()
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    return args


def main():
    args = parse_args()
    # after parsing, so that --help and typing errors answer at once
    from mmext.cli.checkpoint_check import resume_from_last
    from mmext.cli.launch import ConfigError, build_runner, load_config
    from mmext.cli.progress_bar import training_progress
    from mmext.cli.run_log import ending, log_scalars_to
    from mmext.cli.schedule import scale_learning_rate
    from mmext.cli.work_dir import saying_what_is_saved
    cfg = load_config(args.config, args.cfg_options, args.work_dir, args.launcher)
    if args.amp:
        given = cfg.optim_wrapper.get('type', 'OptimWrapper')
        if given not in ('OptimWrapper', 'AmpOptimWrapper'):
            raise ConfigError(f'--amp would replace optim_wrapper.type = {given!r} by '
                              "'AmpOptimWrapper': leave --amp out, or set the type to "
                              "'OptimWrapper'.")
        cfg.optim_wrapper.type = 'AmpOptimWrapper'
        cfg.optim_wrapper.setdefault('loss_scale', 'dynamic')
    if args.log:
        log_scalars_to(cfg, args.log)
    if args.auto_scale_lr:
        scale_learning_rate(cfg)
    if args.resume == 'auto':
        resume_from_last(cfg)
    elif args.resume is not None:
        cfg.resume, cfg.load_from = True, args.resume
    with saying_what_is_saved(cfg.work_dir):
        runner = build_runner(cfg, ('train', 'val'))
        with training_progress(runner):
            runner.train()
        runner.logger.info(ending(runner))


if __name__ == '__main__':
    with one_clear_error():
        main()
