"""Which versions of the OpenMMLab packages, torch and transformers work together."""

import importlib.metadata
import warnings

from packaging.version import Version

# import name -> (distribution, first version supported, first version not supported)
FAMILIES = {
    'onedl': {
        'mmengine': ('onedl-mmengine', '0.10.12', '0.11'),
        'mmcv': ('onedl-mmcv', '2.3.6', '2.4'),
        'mmdet': ('onedl-mmdetection', '3.5.1', '3.6'),
        'mmpretrain': ('onedl-mmpretrain', '1.3.6', '1.4'),
    },
    'OpenMMLab': {
        'mmengine': ('mmengine', '0.10.7', '0.11'),
        'mmcv': ('mmcv', '2.1.0', '2.2'),
        'mmdet': ('mmdet', '3.3.0', '3.4'),
        'mmpretrain': ('mmpretrain', '1.2.0', '1.3'),
    },
}
# name -> the same two; None: not known to end
PLAIN = {
    'torch': ('2.6', None),
    'torchvision': ('0.21', None),
    'timm': ('1.0.26', '2'),
}
ALIASES = {'mmcv': ('mmcv-lite', 'mmcv-full'), 'mmengine': ('mmengine-lite',)}
TESTED_TORCH = ('2.6.0', '2.14.1')
BROKEN_TRANSFORMERS = '5.24'  # from here on `import mmpretrain.models` fails with it


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def installed() -> dict[str, dict[str, tuple[str, str]]]:
    """``{family: {import name: (distribution, version)}}`` of what is installed."""
    found = {}
    for family, packages in FAMILIES.items():
        found[family] = {}
        for name, (distribution, _, _) in packages.items():
            aliases = ALIASES.get(name, ()) if family == 'OpenMMLab' else ()
            for candidate in (distribution, *aliases):
                version = _version(candidate)
                if version is not None:
                    found[family][name] = (candidate, version)
    return found


def supported() -> str:
    """The supported sets, one line each."""
    lines = [
        f'  {family}: ' + ', '.join(f'{d} {span(low, high)}' for d, low, high in packages.values())
        for family, packages in FAMILIES.items()]
    either = ', '.join(f'{name} {span(*bounds)}' for name, bounds in PLAIN.items())
    return '\n'.join([*lines, f'  with either: {either}'])


def span(low: str, high: str | None) -> str:
    return f'>={low}' + (f',<{high}' if high else '')


def _require(distribution: str, version: str, low: str, high: str | None) -> None:
    found = Version(Version(version).base_version)
    if found < Version(low) or (high and found >= Version(high)):
        raise ImportError(
            f'{distribution} {version} is not supported by mmext. Install '
            f'"{distribution}{span(low, high)}". Supported sets:\n' + supported())


def check() -> None:
    """Raise ImportError where the installed packages are not one of the supported sets."""
    found = {family: packages for family, packages in installed().items() if packages}
    if len(found) > 1:
        names = [f'{d} {v}' for packages in found.values() for d, v in packages.values()]
        raise ImportError(
            'Two families of the OpenMMLab packages are installed side by side: '
            f'{", ".join(sorted(names))}. They write into the same import folders, so neither is '
            'intact. Uninstall all of them (`pip uninstall -y ' +
            ' '.join(sorted(d for p in found.values() for d, _ in p.values())) +
            '`), then install one set:\n' + supported())
    for family, packages in found.items():
        for name, (distribution, version) in packages.items():
            _require(distribution, version, *FAMILIES[family][name][1:])
    for distribution, bounds in PLAIN.items():
        version = _version(distribution)
        if version is not None:
            _require(distribution, version, *bounds)
    torch_version = _version('torch')
    if torch_version and Version(torch_version) > Version(TESTED_TORCH[-1] + '.post999'):
        warnings.warn(
            f'mmext was tested with torch {", ".join(TESTED_TORCH)}; torch {torch_version} is '
            'newer. Should something break, try the tested version.', stacklevel=2)


def avoid_broken_transformers() -> bool:
    """Keep mmpretrain's multimodal models out where transformers breaks their import; say whether.

    ``import mmpretrain.models`` fails beside transformers >= 5.24 ('NoneType takes no
    arguments'); its own placeholders, meant for environments without transformers, do not.
    """
    version = _version('transformers')
    if version is None or Version(version) < Version(BROKEN_TRANSFORMERS):
        return False
    import mmpretrain.utils.dependency as dependency
    dependency.WITH_MULTIMODAL = False
    warnings.warn(
        f'transformers {version} breaks mmpretrain\'s multimodal models, so they are left out. '
        f'If you need them: pip install "transformers<{BROKEN_TRANSFORMERS}".', stacklevel=2)
    return True
