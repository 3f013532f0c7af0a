"""mmdet's or mmpretrain's own tool, whichever the config's scope asks for, with mmext set up.

    openmmlab.py analyze_logs CONFIG plot_curve work_dirs/x/*/vis_data/scalars.json --keys loss
    openmmlab.py browse_dataset CONFIG --output-dir images --not-show
    openmmlab.py confusion_matrix CONFIG predictions.pkl OUT_DIR         (detector)
    openmmlab.py confusion_matrix CONFIG CHECKPOINT --show-path cm.png   (classifier)

What follows CONFIG goes to that tool; `openmmlab.py TOOL CONFIG --help` shows its options;
--overwrite among them lets it replace existing files.
"""

import argparse
import inspect
import runpy
import sys
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from mmext.cli.arguments import add_cfg_options, add_overwrite
from mmext.cli.clear_errors import one_clear_error
from mmext.cli.outputs import check_folder, check_outputs

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


def own_options(tool: str, rest: list[str]) -> argparse.Namespace:
    """What is read here of the options that follow CONFIG; none of the outputs may be there."""
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    own.add_argument('--out')
    own.add_argument('--show-path')
    own.add_argument('--output-dir', '-o')
    add_overwrite(own)
    add_cfg_options(own)
    own, words = own.parse_known_args(rest)
    check_outputs([own.out, own.show_path], own.overwrite)
    check_folder(own.output_dir, own.overwrite)
    if tool == 'confusion_matrix' and len(words) > 1 and not words[1].startswith('-'):
        check_outputs([Path(words[1]) / 'confusion_matrix.png'], own.overwrite)  # mmdet's
    return own


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('tool', choices=sorted({tool for _, tool in FOLDERS}))
    parser.add_argument('config')
    parser.add_argument('rest', nargs=argparse.REMAINDER, help='options of the tool')
    args = parser.parse_args(argv)
    own = own_options(args.tool, args.rest)
    args.rest = [word for word in args.rest if word != '--overwrite']
    # after parsing, so that --help and typing errors answer at once
    from mmext.checkpoints.files import local_file
    from mmext.checkpoints.safe_reader import forbid_code_in_checkpoints
    from mmext.cli.checkpoint_check import check_fits, check_readable
    from mmext.cli.launch import build_model, load_config
    forbid_code_in_checkpoints()
    cfg = load_config(args.config, own.cfg_options, None, 'none')
    path = script(cfg.default_scope, args.tool)
    for word in args.rest:
        if word.split('?')[0].endswith(('.pth', '.pt', '.safetensors')) and (
                '://' in word or Path(word).is_file()):
            check_readable(local_file(word))
            if args.tool == 'confusion_matrix':
                check_fits(word, build_model(cfg))
    before = sys.argv
    try:
        with older_matplotlib(), TemporaryDirectory() as folder:
            # as load_config understands it: with bases by name (mmext::...)
            config = Path(folder) / (Path(args.config.split('::')[-1]).stem + '.py')
            cfg.dump(config)
            given = args.rest if args.tool == 'analyze_logs' else [str(config), *args.rest]
            sys.argv = [str(path), *given]
            runpy.run_path(str(path), run_name='__main__')
    finally:
        sys.argv = before


if __name__ == '__main__':
    with one_clear_error():
        main()
