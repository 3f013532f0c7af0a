"""Operators against fp64 references, benchmark tables and training steps on one device.

Needs torch, torchvision and timm alone. Writes JSON in the form of benchmark.py; exits with 1 when
a value is wrong, with --against an older result with 3 when something got slower.

    tools/dev/gpu_check.sh --json gpu_check.json
"""

from pathlib import Path

from mmext.cli.arguments import add_device, add_overwrite, command_line
from mmext.cli.clear_errors import one_clear_error
from mmext.cli.outputs import check_outputs


def parse_args(argv=None):
    parser = command_line(__doc__)
    add_device(parser)
    parser.add_argument('--json', type=Path, default=Path('gpu_check.json'))
    parser.add_argument('--against', type=Path, metavar='OLD.json',
                        help='say what got slower since')
    parser.add_argument('--minutes', type=float, default=5.5,
                        help='no new table is begun after this time')
    parser.add_argument('--correctness-only', action='store_true')
    add_overwrite(parser)
    args = parser.parse_args(argv)
    if args.json.is_dir():
        parser.error(f'--json {args.json} is a folder, give a file')
    return args


def main(argv=None) -> int:
    args = parse_args(argv)
    check_outputs([args.json], args.overwrite)
    # after parsing, so that --help and typing errors answer at once
    from mmext.cli.gpu_check import run
    return run(args)


if __name__ == '__main__':
    with one_clear_error():
        raise SystemExit(main())
