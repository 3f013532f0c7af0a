"""Says what pip still has to do for this checkout: prints pip's arguments, one a line.

Standard library only, so that it runs in an environment that is still empty. Prints nothing when
the checkout is installed (editable, at this version) with all it needs. Where the original
OpenMMLab packages are installed, these are kept: installing the ``onedl-*`` ones beside them
would overwrite the same folders.
"""

import argparse
import json
import re
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlparse

# distribution asked for -> distributions with the same import name
TWINS = {
    'onedl-mmengine': ('mmengine', 'mmengine-lite'),
    'onedl-mmcv': ('mmcv', 'mmcv-lite', 'mmcv-full'),
    'onedl-mmdetection': ('mmdet',),
    'onedl-mmpretrain': ('mmpretrain',),
    'opencv-python': ('opencv-python-headless',),
}


def version_of(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def release(version):
    """'2.6.0+cpu' -> (2, 6, 0)."""
    return tuple(int(number) for number in re.findall(r'\d+', version.split('+')[0])[:3])


def satisfies(version, conditions):
    """Whether a version meets conditions such as '>=1.0.20,<2'; knows >=, <, ==, != and >."""
    for condition in filter(None, (c.strip() for c in conditions.split(','))):
        sign, bound = re.fullmatch(r'(>=|<=|==|!=|~=|<|>)\s*([\w.*+!-]+)', condition).groups()
        have, want = release(version), release(bound)
        want += (0,) * (3 - len(want))
        have += (0,) * (3 - len(have))
        if not {'>=': have >= want, '<=': have <= want, '==': have == want, '!=': have != want,
                '<': have < want, '>': have > want, '~=': have >= want}[sign]:
            return False
    return True


def is_installed(requirement):
    name, conditions = re.match(r'([\w.-]+)(?:\[[^]]*\])?\s*\(?([^;)]*)', requirement).groups()
    version = version_of(name)
    if version is not None:
        return satisfies(version, conditions)
    return any(version_of(twin) for twin in TWINS.get(name.lower(), ()))


def requirements_of(root, extras):
    """Requirements of the installed mmext, or None when this checkout is not what is installed."""
    try:
        found = metadata.distribution('mmext')
    except metadata.PackageNotFoundError:
        return None
    text = (root / 'mmext' / '__init__.py').read_text()
    if found.version != re.search(r"__version__ = '([^']+)'", text)[1]:
        return None
    source = json.loads(found.read_text('direct_url.json') or '{}').get('url', '')
    if not source.startswith('file:') or Path(unquote(urlparse(source).path)).resolve() != root:
        return None
    wanted = []
    for requirement in found.requires or []:
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", requirement)
        if extra is None or extra[1] in extras:
            wanted.append(requirement.split(';')[0].strip())
    return wanted


def pip_calls(root, extras):
    """Arguments of each ``pip install`` still needed, at most one at a time."""
    target = f'{root}[{",".join(extras)}]' if extras else str(root)
    wanted = requirements_of(root, extras)
    originals = any(version_of(twin) for name, twins in TWINS.items() if name.startswith('onedl')
                    for twin in twins)
    if not originals:
        ready = wanted is not None and all(map(is_installed, wanted))
        return [] if ready else [['-e', target]]
    if wanted is None:  # without dependencies; what else is missing comes in the next round
        return [['--no-deps', '-e', str(root)]]
    missing = [requirement for requirement in wanted if not is_installed(requirement)]
    return [missing] if missing else []


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('root', type=Path, help='folder of the checkout')
    parser.add_argument('extras', nargs='*', help="of pyproject.toml, e.g. 'tests'")
    args = parser.parse_args()
    if not (args.root / 'mmext' / '__init__.py').is_file():
        parser.error(f'{args.root} is no checkout of mmext')
    for call in pip_calls(args.root.resolve(), args.extras):
        print(*call, sep='\n')
