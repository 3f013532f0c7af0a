"""List the configs of the model zoo with task, parameters and GFLOPs.

FLOPs are 2 x multiply-adds at the size the config is made for. The names can be given to every
command in the place of a path, and to `_base_` of an own config.

Examples:
    mmext models dmst
    mmext models --task detection --json zoo.json
"""

import argparse
import json
import sys
from pathlib import Path

from mmext.cli.arguments import add_overwrite
from mmext.cli.clear_errors import one_clear_error
from mmext.cli.model_index import read_index, table
from mmext.cli.outputs import check_outputs


def parse_args(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('pattern', nargs='?', default='', help='only names that contain this')
    parser.add_argument('--task', default='', help='only tasks that contain this, in any case')
    parser.add_argument('--json', type=Path, metavar='OUT', help='write the list to this file')
    add_overwrite(parser)
    return parser.parse_args(argv)


def main(argv=None):
    args = parse_args(argv)
    check_outputs([args.json], args.overwrite)
    entries = [entry for entry in read_index() if args.pattern in entry['config']
               and args.task.lower() in entry['task'].lower()]
    if not entries:
        sys.exit(f'error: no config matches {args.pattern!r}' +
                 (f' with task {args.task!r}' if args.task else ''))
    print(table(entries))
    if args.json:
        args.json.write_text(json.dumps(entries, indent=1) + '\n')


if __name__ == '__main__':
    with one_clear_error():
        main()
