"""mmdet's or mmpretrain's own tool, whichever the config's scope asks for, with mmext set up.

    openmmlab.py analyze_logs CONFIG plot_curve work_dirs/x/*/vis_data/scalars.json --keys loss
    openmmlab.py browse_dataset CONFIG --output-dir images --not-show
    openmmlab.py confusion_matrix CONFIG predictions.pkl OUT_DIR         (detector)
    openmmlab.py confusion_matrix CONFIG CHECKPOINT --show-path cm.png   (classifier)

What follows CONFIG goes to that tool; `openmmlab.py TOOL CONFIG --help` shows its options.
"""

import argparse
import inspect
import runpy
import sys
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from mmext.cli.clear_errors import one_clear_error

FOLDERS = {
    ('mmdet', 'analyze_logs'): 'analysis_tools',
    ('mmdet', 'browse_dataset'): 'analysis_tools',
    ('mmdet', 'confusion_matrix'): 'analysis_tools',
    ('mmpretrain', 'analyze_logs'): 'analysis_tools',
    ('mmpretrain', 'browse_dataset'): 'visualization',
    ('mmpretrain', 'confusion_matrix'): 'analysis_tools',
}


def script(scope: str, tool: str) -> Path:
    from mmext.cli.config_check import ConfigError
    package = Path(find_spec(scope).submodule_search_locations[0])
    path = package / '.mim' / 'tools' / FOLDERS[scope, tool] / f'{tool}.py'
    if not path.is_file():
        raise ConfigError(f'{path} does not exist: {scope} was installed without its tools; '
                          'install its wheel from PyPI')
    return path


@contextmanager
def older_matplotlib():
    """What the tools expect of matplotlib and seaborn, for the time of one of them.

    mmdet's analyze_logs asks for the style 'dark', which only seaborn registers; mmpretrain's
    browse_dataset calls a private function that takes a renderer since matplotlib 3.11.
    """
    import matplotlib.style
    from matplotlib import _tight_bbox
    styles, original = matplotlib.style.library, _tight_bbox.adjust_bbox
    styles.setdefault('dark', styles['seaborn-v0_8-dark'])
    if 'renderer' in inspect.signature(original).parameters:
        _tight_bbox.adjust_bbox = lambda figure, box, *args: original(
            figure, box, *(args or (figure.canvas.get_renderer(),)))
    try:
        yield
    finally:
        _tight_bbox.adjust_bbox = original


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('tool', choices=sorted({tool for _, tool in FOLDERS}))
    parser.add_argument('config')
    parser.add_argument('rest', nargs=argparse.REMAINDER, help='options of the tool')
    args = parser.parse_args(argv)
    # after parsing, so that --help and typing errors answer at once
    from mmext.checkpoints.safe_reader import forbid_code_in_checkpoints
    from mmext.cli.checkpoint_check import check_readable
    from mmext.cli.launch import load_config
    path = script(load_config(args.config, None, None, 'none').default_scope, args.tool)
    for word in args.rest:
        if word.endswith('.pth') and Path(word).is_file():
            forbid_code_in_checkpoints()
            check_readable(word)
    given = args.rest if args.tool == 'analyze_logs' else [args.config, *args.rest]
    before = sys.argv
    sys.argv = [str(path), *given]
    try:
        with older_matplotlib():
            runpy.run_path(str(path), run_name='__main__')
    finally:
        sys.argv = before


if __name__ == '__main__':
    with one_clear_error():
        main()
