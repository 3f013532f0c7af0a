"""Test a detector or a classifier; the config's ``default_scope`` decides which."""

import argparse
import os
import os.path as osp
from copy import deepcopy

from mmext.cli.arguments import add_amp, add_cfg_options, add_overwrite
from mmext.cli.clear_errors import one_clear_error
from mmext.cli.config_walk import initial_weights


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='path of the config')
    parser.add_argument('checkpoint', help='path or URL of the checkpoint; for a classifier also '
                        'the published file of its network (DeiT, MAE, ToST, timm)')
    parser.add_argument('--work-dir', help='where the log goes '
                        '(default: work_dirs/<name of the config>)')
    parser.add_argument(
        '--out', help='*.pkl: predictions for offline evaluation; *.json: the metrics')
    add_overwrite(parser)
    parser.add_argument('--show-dir', help='draw the predictions into this folder')
    parser.add_argument('--tta', action='store_true', help='test-time augmentation')
    add_amp(parser)
    add_cfg_options(parser)
    parser.add_argument('--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'], default='none')
    # torch.distributed.launch passes either spelling, depending on its version
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0)
    args = parser.parse_args()
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    return args


def draw_predictions(cfg, folder):
    """Switch on the visualization hook of either scope."""
    from mmext.cli.launch import set_visualizer
    folder = osp.abspath(folder)
    if cfg.default_scope == 'mmdet':
        hook = dict(type='DetVisualizationHook', draw=True, test_out_dir=folder)
    else:
        hook = dict(type='VisualizationHook', enable=True, out_dir=folder)
    cfg.setdefault('default_hooks', {})
    cfg.default_hooks.setdefault('visualization', {})
    cfg.default_hooks.visualization.update(hook)
    set_visualizer(cfg)


def augment_at_test_time(cfg):
    """Average over horizontal flips, or do what the config's tta_model and tta_pipeline say."""
    from mmengine.config import ConfigDict
    detection = cfg.default_scope == 'mmdet'
    if 'tta_model' not in cfg:
        cfg.tta_model = dict(
            type='DetTTAModel',
            tta_cfg=dict(nms=dict(type='nms', iou_threshold=.5), max_per_img=100),
        ) if detection else dict(type='AverageClsScoreTTA')
    data = cfg.test_dataloader.dataset
    while 'dataset' in data:
        data = data.dataset
    if 'tta_pipeline' not in cfg:
        pack = deepcopy(data.pipeline[-1])
        if detection:
            pack.meta_keys = ('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor',
                              'flip', 'flip_direction')
        flips = [dict(type='RandomFlip', prob=1.), dict(type='RandomFlip', prob=0.)]
        steps = [t for t in data.pipeline[:-1] if t.type != 'LoadAnnotations']
        cfg.tta_pipeline = [*steps, dict(type='TestTimeAug', transforms=[flips, [pack]])]
    data.pipeline = cfg.tta_pipeline
    cfg.model = ConfigDict(**cfg.tta_model, module=cfg.model)


def main():
    args = parse_args()
    # after parsing, so that --help and typing errors answer at once
    from mmext.cli.launch import ConfigError, build_runner, load_config
    from mmext.cli.outputs import check_folder, check_outputs, keep_drawings_apart
    from mmext.engine import PruningRatioHook
    cfg = load_config(args.config, args.cfg_options, args.work_dir, args.launcher)
    if args.out and not args.out.endswith(('.pkl', '.pickle', '.json')):
        raise ConfigError(f'--out {args.out!r} must end in .pkl (predictions) or .json (metrics).')
    check_outputs([args.out], args.overwrite, [args.config, args.checkpoint])
    check_folder(args.show_dir, args.overwrite)
    if args.tta and args.show_dir and cfg.default_scope == 'mmpretrain':
        raise ConfigError('--tta and --show-dir exclude each other for classifiers: there is no '
                          'one image to draw on.')
    cfg.load_from = args.checkpoint
    for _, node, _ in list(initial_weights(cfg.model)):
        node['init_cfg'] = None  # replaced by the checkpoint under test; may not even be here
    if args.show_dir:
        draw_predictions(cfg, args.show_dir)
    if args.tta:
        from mmext.cli.config_check import check_tta
        check_tta(cfg)
        augment_at_test_time(cfg)
    runner = build_runner(cfg, ('test',))
    keep_drawings_apart(runner.visualizer)
    runner.register_hook(PruningRatioHook())
    if args.out and not args.out.endswith('.json'):
        if cfg.default_scope == 'mmdet':
            from mmdet.evaluation import DumpDetResults as Dump
        else:
            from mmengine.evaluator import DumpResults as Dump
        runner.test_evaluator.metrics.append(Dump(out_file_path=args.out))
    if args.amp:
        from mmext.cli.half_precision import use_half_precision
        use_half_precision(runner.model, args.amp)
    metrics = runner.test()
    if args.out and args.out.endswith('.json'):
        from mmengine.dist import master_only
        from mmengine.fileio import dump
        master_only(dump)(metrics, args.out)


if __name__ == '__main__':
    with one_clear_error():
        main()
