"""FLOPs and parameters of a classifier or detector, by part. Needs no data set and no weights.

The model of the config is built with random weights and run once on a random image in eval mode;
see mmext/analysis/flop_counter.py for what counts. A two-stage detector gets a fixed number of
regions (1,000 proposals, 100 mask boxes: the test-time caps), so the result is deterministic.

Examples:
    python tools/analysis_tools/get_flops.py configs/deit_bias/deit-s-bias_8xb128-ft_in1k.py
    python tools/analysis_tools/get_flops.py CONFIG --shape 1024 --keep-ratio 0.9 0.1
    python tools/analysis_tools/get_flops.py CONFIG --shape 800 1333 --backbone-only --json out.json
"""

import argparse
import json
from contextlib import nullcontext
from pathlib import Path

import torch
from mmengine.config import DictAction

import mmext.registry  # noqa: F401  (prepares mmcv, mmdet and mmpretrain for this machine)
from mmext.analysis.flop_counter import count_by_part, drop_values, parameters_of
from mmext.analysis.timing import check_device
from mmext.cli.config_check import ConfigError
from mmext.cli.launch import build_model, default_shape, load_config, one_clear_error

UNITS = ('GFLOPs = 2 x MACs / 1e9 of convolutions, linear layers, matrix products and attention; '
         'no softmax, normalization, activation, top-k or gather.')


def parse_args(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config file of a classifier or detector')
    parser.add_argument(
        '--shape', type=int, nargs='+', metavar=('H', 'W'),
        help='input height and width, or one number for both (default: what the config says)')
    parser.add_argument(
        '--keep-ratio', nargs='+', metavar='R',
        help="'none' for dense, one ratio, two for a linear schedule over depth, or one per block "
        '(default: what the config says)')
    parser.add_argument('--backbone-only', action='store_true')
    parser.add_argument(
        '--gather', choices=['after', 'before', 'auto'], default='after',
        help="where bias-pruned attention drops keys and values: 'after' their projection is the "
        "paper's count, 'before' it saves 2(1-r)Nd^2 MACs more, 'auto' is what the model runs")
    parser.add_argument('--proposals', type=int, default=1000, help='regions of the box head')
    parser.add_argument('--boxes', type=int, default=100, help='regions of the mask head')
    parser.add_argument('--device', default='cpu')
    parser.add_argument(
        '--shapes-only', action='store_true',
        help='compute nothing: a second even for ViT-L at 1024; not for detectors or tau')
    parser.add_argument(
        '--modules', type=int, default=0, metavar='DEPTH',
        help='also list modules down to this depth of names')
    parser.add_argument('--json', metavar='OUT', help='write the result to this file')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, help='override the config')
    args = parser.parse_args(argv)
    if args.shape and (len(args.shape) > 2 or min(args.shape) < 1):
        parser.error(f'--shape takes one or two positive numbers, got {args.shape}')
    if min(args.proposals, args.boxes) < 1:
        parser.error('--proposals and --boxes must be at least 1')
    return args


def analyze(args) -> dict:
    check_device(args.device)
    cfg = load_config(args.config, args.cfg_options, None, 'none')
    model = build_model(cfg)
    if args.shapes_only and not args.backbone_only and (
            hasattr(model, 'roi_head') or hasattr(model, 'panoptic_head')
            or hasattr(model, 'forward_transformer')):
        raise ConfigError('--shapes-only: regions and queries of a detector have values; leave '
                          'it out, or add --backbone-only')
    if args.keep_ratio:
        if not hasattr(model.backbone, 'set_keep_ratio'):
            raise ConfigError(f'--keep-ratio: backbone {type(model.backbone).__name__} does not '
                             'prune; leave the option out')
        model.backbone.set_keep_ratio(args.keep_ratio)
    if hasattr(model.backbone, 'set_gather'):
        model.backbone.set_gather(args.gather)
    shape = tuple(args.shape * 2)[:2] if args.shape else default_shape(model, cfg)

    model = model.to(args.device)
    with drop_values(model) if args.shapes_only else nullcontext():
        image = torch.rand(1, 3, *shape, device=args.device)
        counts = count_by_part(model, image, args.proposals, args.boxes, args.backbone_only)

    parts = {
        name: {'gflops': count.gflops, 'params': parameters_of(model, name)}
        for name, count in counts.items()
    }
    result = {
        'config': str(args.config),
        'shape': list(shape),
        'keep_ratio': ' '.join(args.keep_ratio) if args.keep_ratio else 'as in the config',
        'gather': args.gather,
        'device': args.device,
        'units': UNITS,
        'parts': parts,
        'gflops': sum(part['gflops'] for part in parts.values()),
        'params': sum(part['params'] for part in parts.values()),
    }
    if 'rpn_head' in parts:
        result['proposals'], result['boxes'] = args.proposals, args.boxes
    if args.modules:
        result['modules'] = {
            name: flops / 1e9
            for count in counts.values() for name, flops in count.by_module.items()
            if name.count('.') < args.modules
        }
    return result


def show(result: dict) -> None:
    h, w = result['shape']
    print(f"Config: {result['config']}")
    print(f"Input: 1 x 3 x {h} x {w}, eval mode, keep ratio: {result['keep_ratio']}, "
          f"key-value gather: {result['gather']} projection")
    if 'proposals' in result:
        print(f"Regions: {result['proposals']} proposals, {result['boxes']} mask boxes")
    print(f"\n{'part':<13} {'GFLOPs':>12} {'params':>14}")
    for name, part in result['parts'].items():
        print(f"{name:<13} {part['gflops']:>12.3f} {part['params']:>14,}")
    print(f"{'total':<13} {result['gflops']:>12.3f} {result['params']:>14,}")
    for name, value in result.get('modules', {}).items():
        print(f'  {name:<50} {value:>12.3f} GFLOPs')
    print(f"\n{result['units']}")


def main(argv=None):
    args = parse_args(argv)
    result = analyze(args)
    show(result)
    if args.json:
        Path(args.json).parent.mkdir(parents=True, exist_ok=True)
        Path(args.json).write_text(json.dumps(result, indent=1) + '\n')


if __name__ == '__main__':
    with one_clear_error():
        main()
