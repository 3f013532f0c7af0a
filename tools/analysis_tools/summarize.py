"""A table of finished runs: accuracy or AP, parameters, GFLOPs, latency; Markdown and CSV.

Metrics come from metrics.json of the work dir (RunArtifactsHook), else from the run's newest
scalars.json; parameters and GFLOPs from the config in the work dir at its own image size. --latency
times the backbones on this machine, in one process and in alternation.

Example:
    python tools/analysis_tools/summarize.py work_dirs/* --out tables
"""

import csv
import json
from pathlib import Path

from mmext.cli.arguments import add_device, add_overwrite, command_line, positive, use_device
from mmext.cli.clear_errors import one_clear_error
from mmext.cli.outputs import check_outputs


def parse_args(argv=None):
    parser = command_line(__doc__)
    parser.add_argument('work_dirs', type=Path, nargs='+')
    parser.add_argument('--pick', choices=['last', 'best'], default='last',
                        help='which validation counts')
    parser.add_argument('--latency', action='store_true')
    parser.add_argument('--repeat', type=positive, default=20, help='timed runs of each backbone')
    add_device(parser)
    parser.add_argument('--out', type=Path, metavar='DIR',
                        help='write summary.md and summary.csv there')
    parser.add_argument('--json', type=Path, metavar='FILE')
    add_overwrite(parser)
    return parser.parse_args(argv)


def main(argv=None):
    args = parse_args(argv)
    tables = [args.out / 'summary.md', args.out / 'summary.csv'] if args.out else []
    check_outputs([*tables, args.json], args.overwrite)
    # after parsing, so that --help and typing errors answer at once
    from mmext.cli.summary import add_latency, markdown, table
    use_device(args)
    rows = table(args.work_dirs, args.pick)
    if args.latency:
        add_latency(rows, args.work_dirs, args.device, args.repeat)
    print(markdown(rows))
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        tables[0].write_text(markdown(rows))
        with open(tables[1], 'w', newline='') as file:
            writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
            writer.writeheader()
            writer.writerows(rows)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(rows, indent=1) + '\n')


if __name__ == '__main__':
    with one_clear_error():
        main()
