"""What got slower between two results."""

import copy
import json

import pytest

from mmext.cli import benchmark, benchmark_compare


def cell(ms, spread=1., peak=None):
    found = {'ms': ms, 'ms_p10': ms - spread, 'ms_p90': ms + spread, 'ms_mean': ms, 'ms_std': 0.,
             'speedup': 1.}
    return found if peak is None else found | {'peak_mib': peak}


def result(**rows):
    table = dict(level='layer', train=False, compile=False, batch=1, extent=64, dtype='fp32',
                 rows={name: {'fused': value} for name, value in rows.items()})
    return {'environment': {'hardware': 'a'}, 'settings': {}, 'tables': [table]}


def verdicts(old, new):
    return {(change.what.split(', ')[-2], change.unit): change.verdict
            for change in benchmark_compare.compare(old, new)}


def test_only_what_leaves_the_spread_counts():
    old = result(plain=cell(10), bias=cell(10), dmsa=cell(10), tssa=cell(10), gone=cell(1))
    new = result(plain=cell(11.9), bias=cell(12.1), dmsa=cell(7.9), tssa=cell(8.1), new=cell(1))
    assert verdicts(old, new) == {
        ('plain', 'ms'): 'same', ('bias', 'ms'): 'slower', ('dmsa', 'ms'): 'faster',
        ('tssa', 'ms'): 'same'}


def test_memory_counts():
    old = result(plain=cell(10, peak=100.), bias=cell(10, peak=100.), tssa=cell(10, peak=100.))
    new = result(plain=cell(10, peak=101.), bias=cell(10, peak=103.), tssa=cell(10, peak=50.))
    assert [v for (_, unit), v in verdicts(old, new).items() if unit == 'peak_mib'] == [
        'same', 'more memory', 'same']


@pytest.mark.parametrize('key, value', [
    ('dtype', 'bf16'), ('extent', 65), ('batch', 2), ('train', True), ('compile', True),
    ('level', 'operator')])
def test_other_tables_are_not_compared(key, value):
    old, new = result(plain=cell(10)), result(plain=cell(99))
    new['tables'][0][key] = value
    with pytest.raises(ValueError, match='nothing to compare'):
        benchmark_compare.compare(old, new)


def test_results_of_before_the_tables_said_their_level():
    old, new = result(plain=cell(10)), result(plain=cell(99))
    for key in ('level', 'train', 'compile'):
        old['settings'][key] = old['tables'][0].pop(key)
    assert verdicts(old, new) == {('plain', 'ms'): 'slower'}


@pytest.fixture(scope='module')
def tool(load_tool):
    return load_tool('analysis_tools/benchmark')


def test_status_and_report_of_a_real_result(tool, tmp_path, capsys):
    """A measured file against itself, and against itself with a slower and a larger row."""
    old, new = tmp_path / 'old.json', tmp_path / 'new.json'
    assert tool.main(['operator', '--tokens', '64', '--dim', '32', '--heads', '2', '--repeat', '3',
                      '--device', 'cpu', '--json', str(old)]) == 0
    content = json.loads(old.read_text())
    same = ['compare', '--json', str(new), '--against', str(old)]
    new.write_text(old.read_text())
    assert tool.main(same) == 0
    assert 'slower      ' not in capsys.readouterr().out
    worse = copy.deepcopy(content)
    for key in ('ms', 'ms_p10', 'ms_p90'):
        worse['tables'][0]['rows']['dmsa']['fused'][key] *= 100
    worse['environment']['torch'] = '9'
    new.write_text(json.dumps(worse))
    assert tool.main(same) == 3
    text = capsys.readouterr().out
    assert 'slower      operator, 64, batch 1, fp32, dmsa, fused' in text
    assert '1 slower' in text and 'torch differs' in text
    larger = copy.deepcopy(content)
    larger['tables'][0]['rows']['tssa']['fused']['peak_mib'] += 10
    new.write_text(json.dumps(larger))
    assert tool.main(same) == 3
    assert 'more memory operator, 64' in capsys.readouterr().out


def test_measured_against_a_file(tool, tmp_path, capsys):
    old = tmp_path / 'old.json'
    options = ['operator', '--tokens', '64', '--dim', '32', '--heads', '2', '--repeat', '2',
               '--device', 'cpu', '--no-memory']
    made = benchmark.run(tool.parse_args(options))
    for row in made['tables'][0]['rows'].values():
        for key in ('ms', 'ms_p10', 'ms_p90'):
            row['fused'][key] /= 1e6
    old.write_text(json.dumps(made))
    assert tool.main([*options, '--against', str(old)]) == 3
    assert '7 slower' in capsys.readouterr().out


def test_wrong_files_are_named(tool, tmp_path):
    (tmp_path / 'a.json').write_text('{}')
    with pytest.raises(ValueError, match='is no result of'):
        tool.main(['compare', '--json', str(tmp_path / 'a.json'), '--against',
                   str(tmp_path / 'a.json')])


def test_compare_needs_both(tool, capsys):
    with pytest.raises(SystemExit):
        tool.parse_args(['compare', '--json', 'a.json'])
    assert '--against' in capsys.readouterr().err
