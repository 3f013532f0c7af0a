"""FLOPs and parameters of a classifier or detector, by part. Needs no data set and no weights.

The model of the config is built with random weights and run once on a random image in eval mode;
see mmext/analysis/flop_counter.py for what counts. A two-stage detector gets a fixed number of
regions (1,000 proposals, 100 mask boxes: the test-time caps), so the result is deterministic.

Examples:
    python tools/analysis_tools/get_flops.py configs/deit_bias/deit-s-bias_8xb128-ft_in1k.py
    python tools/analysis_tools/get_flops.py CONFIG --shape 1024 --keep-ratio 0.9,0.1
    python tools/analysis_tools/get_flops.py CONFIG --shape 800 1333 --backbone-only --json out.json
"""

import json
from pathlib import Path

from mmext.cli.arguments import (
    add_cfg_options,
    add_keep_ratio,
    add_overwrite,
    add_shape,
    command_line,
    positive,
)
from mmext.cli.clear_errors import one_clear_error
from mmext.cli.outputs import check_outputs


def parse_args(argv=None):
    parser = command_line(__doc__)
    parser.add_argument('config', help='config file of a classifier or detector')
    add_shape(parser)
    add_keep_ratio(parser)
    parser.add_argument('--backbone-only', action='store_true')
    parser.add_argument(
        '--gather', choices=['after', 'before', 'auto'], default='after',
        help="where bias-pruned attention drops keys and values: 'after' their projection is the "
        "paper's count, 'before' it saves 2(1-r)Nd^2 MACs more, 'auto' is what the model runs")
    parser.add_argument(
        '--proposals', type=positive, default=1000, help='regions of the box head')
    parser.add_argument('--boxes', type=positive, default=100, help='regions of the mask head')
    parser.add_argument('--device', default='cpu', help='(default: cpu)')
    parser.add_argument(
        '--shapes-only', action='store_true',
        help='compute nothing: a second even for ViT-L at 1024; not for detectors or tau')
    parser.add_argument(
        '--modules', type=int, default=0, metavar='DEPTH',
        help='also list modules down to this depth of names')
    parser.add_argument('--json', type=Path, metavar='OUT', help='write the result to this file')
    add_overwrite(parser)
    add_cfg_options(parser)
    return parser.parse_args(argv)


def show(result: dict) -> None:
    h, w = result['shape']
    print(f"Config: {result['config']}")
    print(f"Input: 1 x 3 x {h} x {w}, eval mode, keep ratio: {result['keep_ratio']}, "
          f"key-value gather: {result['gather']} projection")
    if 'proposals' in result:
        print(f"Regions: {result['proposals']} proposals, {result['boxes']} mask boxes")
    print(f"\n{'part':<12} {'GFLOPs':>12} {'params':>14}")
    for name, part in result['parts'].items():
        print(f"{name:<12} {part['gflops']:>12.3f} {part['params']:>14,}")
    print(f"{'total':<12} {result['gflops']:>12.3f} {result['params']:>14,}")
    for name, value in result.get('modules', {}).items():
        print(f'  {name:<50} {value:>12.3f} GFLOPs')
    print(f"\n{result['units']}")


def main(argv=None):
    args = vars(parse_args(argv))
    out = args.pop('json')
    check_outputs([out], args.pop('overwrite'), [args['config']])
    # after parsing, so that --help and typing errors answer at once
    from mmext.cli.flops import count_config
    result = count_config(**args)
    show(result)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=1) + '\n')


if __name__ == '__main__':
    with one_clear_error():
        main()
