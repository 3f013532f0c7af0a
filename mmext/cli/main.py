"""The console command ``mmext``: every tool by a short name, from any folder.

``mmext train CONFIG`` is ``python tools/train.py CONFIG``: the same file with the same options.
Help and names come from the files, so a new tool is a new command. Nothing heavy is imported
before a tool runs.
"""

import ast
import contextlib
import difflib
import sys
import types
from pathlib import Path

import mmext

from .package_files import shipped

# shorter or better known names; any other tool is called as its file, with '-' for '_'
SHORT = {'demo': 'predict', 'get_flops': 'flops', 'check_coco': 'check',
         'publish_model': 'publish', 'convert_vit': 'convert'}
TITLES = {'.': 'Models', 'dataset_converters': 'Data', 'model_converters': 'Checkpoints',
          'analysis_tools': 'Analysis'}


def commands() -> dict[str, Path]:
    """Name of the command -> file of the tool; tools for developers of mmext are left out."""
    root = shipped('tools')
    files = [file for folder in TITLES for file in sorted((root / folder).glob('*.py'))]
    return {SHORT.get(file.stem, file.stem.replace('_', '-')): file for file in files}


def help_text() -> str:
    lines = ['usage: mmext COMMAND [OPTIONS]        mmext COMMAND --help says more',
             '       mmext --version']
    title = None
    for name, file in commands().items():
        folder = file.parent.name
        if title != TITLES.get(folder, TITLES['.']):
            title = TITLES.get(folder, TITLES['.'])
            lines += ['', f'{title}:']
        text = ast.get_docstring(ast.parse(file.read_text(encoding='utf-8'))) or ''
        first = text.split('\n\n')[0].replace('\n', ' ')
        lines.append(f'  {name:<20} {first if len(first) < 78 else first[:76] + "…"}')
    return '\n'.join(lines)


def main(argv: list[str] | None = None) -> None:
    """Run one command; the tool's own exit status is that of the process."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ('-h', '--help', 'help'):
        with contextlib.suppress(BrokenPipeError):  # `mmext --help | head`
            print(help_text(), flush=True)
        return
    if argv[0] in ('-V', '--version'):
        print(f'mmext {mmext.__version__}')
        return
    name, *rest = argv
    known = commands()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f' Did you mean {close[0]!r}?' if close else ''
        sys.exit(f'error: mmext has no command {name!r}.{hint} `mmext --help` lists them.')
    # as runpy.run_path, which would put the tool's path where argparse looks for the name
    sys.argv = [f'mmext {name}', *rest]
    tool = types.ModuleType('__main__')
    tool.__file__ = str(known[name])
    sys.modules['__main__'] = tool
    exec(compile(known[name].read_bytes(), tool.__file__, 'exec'), tool.__dict__)
