"""What got slower between two JSON files of ``benchmark.py`` or ``gpu_check.sh``."""

import json
from pathlib import Path
from typing import NamedTuple

MORE_MEMORY = 1.02  # peaks of equal code differ by less


class Change(NamedTuple):
    """One measured cell in both files: ``what`` it is, 'ms' or 'peak_mib', values, verdict."""

    what: str
    unit: str
    old: float
    new: float
    verdict: str


def read(path: str | Path) -> dict:
    """A result file.

    Raises:
        ValueError: it holds no tables.
    """
    try:
        result = json.loads(Path(path).read_text())
        tables = result['tables']
    except (ValueError, KeyError, TypeError):
        raise ValueError(f'{path} is no result of benchmark.py --json or gpu_check.sh') from None
    return result | {'tables': tables}


def cells(result: dict) -> dict[str, dict]:
    """Every measured cell by what it is, in words."""
    settings = result.get('settings', {})
    found = {}
    for table in result['tables']:
        said = {key: table.get(key, settings.get(key))
                for key in ('level', 'train', 'compile', 'gather', 'arch', 'config')}
        extent = table['extent']
        size = 'x'.join(map(str, extent)) if isinstance(extent, (list, tuple)) else extent
        words = [str(said['level']), f'{size}', f"batch {table['batch']}", table['dtype']]
        if said['level'] == 'backbone':
            words.insert(1, str(said['arch']))
        if said['level'] in ('classifier', 'detector', 'training') and said['config']:
            first = said['config'] if isinstance(said['config'], str) else said['config'][0]
            words.insert(1, Path(first).stem)
        words += [word for word in ('train', 'compile') if said[word]]
        if said['gather'] not in (None, 'auto'):
            words.append(f"gather {said['gather']}")
        for name, row in table['rows'].items():
            for column, cell in row.items():
                found[', '.join([*words, name, column])] = cell
    return found


def compare(old: dict, new: dict) -> list[Change]:
    """All cells that both hold, in the order of ``new``.

    'slower' where the spreads (10th to 90th percentile) do not overlap and the new one is above,
    'faster' the other way round, 'more memory' beyond 2 %, else 'same'.

    Raises:
        ValueError: they have no cell in common.
    """
    before, after = cells(old), cells(new)
    changes = []
    for what, cell in after.items():
        if what not in before:
            continue
        other = before[what]
        verdict = ('slower' if cell['ms_p10'] > other['ms_p90'] else
                   'faster' if cell['ms_p90'] < other['ms_p10'] else 'same')
        changes.append(Change(what, 'ms', other['ms'], cell['ms'], verdict))
        if 'peak_mib' in cell and 'peak_mib' in other:
            more = cell['peak_mib'] > MORE_MEMORY * other['peak_mib'] + 0.1
            changes.append(Change(what, 'peak_mib', other['peak_mib'], cell['peak_mib'],
                                  'more memory' if more else 'same'))
    if not changes:
        raise ValueError('nothing to compare: no row of the new result is in the old one. Old: '
                         f'{next(iter(before), "no rows")}; new: {next(iter(after), "no rows")}')
    return changes


def report(old: dict, new: dict) -> bool:
    """Print what changed beyond the spread; True when something got worse."""
    changes = compare(old, new)
    for key, value in new.get('environment', {}).items():
        if old.get('environment', {}).get(key) != value:
            print(f"note: {key} differs, {old.get('environment', {}).get(key)} before, {value} now")
    shown = [change for change in changes if change.verdict != 'same']
    for change in sorted(shown, key=lambda change: change.verdict, reverse=True):
        unit = 'ms' if change.unit == 'ms' else 'MiB'
        print(f'{change.verdict:<12}{change.what}: {change.old:.2f} -> {change.new:.2f} {unit} '
              f'({change.new / change.old:.2f} x)')
    worse = [change for change in changes if change.verdict in ('slower', 'more memory')]
    counts = {verdict: sum(change.verdict == verdict for change in changes)
              for verdict in ('slower', 'more memory', 'faster', 'same')}
    print(f'{len(changes)} numbers compared: '
          + ', '.join(f'{count} {verdict}' for verdict, count in counts.items()))
    return bool(worse)
