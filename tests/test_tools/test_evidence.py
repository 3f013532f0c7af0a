"""The evidence command: statistics, the page against its results, and one tiny run."""

import importlib.util
import json
import statistics
import sys

import pytest
import yaml
from mmengine.config import Config
from scipy import stats

from mmext.cli import evidence_page


@pytest.fixture(scope='module')
def tools(root_dir):
    """tools/dev/evidence.py and the page that it writes."""
    spec = importlib.util.spec_from_file_location('evidence', root_dir / 'tools/dev/evidence.py')
    module = sys.modules['evidence'] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module, evidence_page
    sys.modules.pop('evidence')


@pytest.fixture(scope='module')
def page(tools):
    return tools[1]


# ---------------------------------------------------------------------------- what is committed


def test_page_is_what_the_results_give(tools, root_dir):
    """No number of the page was typed, none is out of date."""
    evidence, page = tools
    text = (evidence.FOLDER / 'README.md').read_text()
    assert page.render(text, page.Results(evidence.experiments(), evidence.RESULTS)) == text
    assert len(page.BLOCK.findall(text)) > 20


def test_prose_has_no_result_of_its_own(tools):
    """Outside the marked blocks there is no number with a decimal but settings."""
    evidence, page = tools
    prose = page.BLOCK.sub('', (evidence.FOLDER / 'README.md').read_text())
    import re
    allowed = {'0.9', '0.1', '1.6', '.9', '.1'}
    found = set(re.findall(r'(?<![\w.-])\d*\.\d+(?![\w-])', prose))
    assert found <= allowed, found - allowed


def test_results_are_of_the_configs_as_they_are(tools):
    """Same number of epochs, the tests that the experiment names."""
    evidence, _ = tools
    known = {e.name: e for e in evidence.experiments()}
    for path in evidence.RESULTS.glob('*-*.json'):
        found = json.loads(path.read_text())
        experiment = known[found['experiment']]
        if 'epochs' in found and 'max_iters' not in (
                cfg := Config.fromfile(evidence.FOLDER / experiment.config).train_cfg):
            epochs = experiment.options.get('train_cfg.max_epochs', cfg.max_epochs)
            assert found['epochs'] == epochs, path.name
        assert set(found['tests']) >= set(experiment.tests), path.name


def test_experiments_fit_their_configs(tools):
    """Every option names a key that its config has, or its backbone takes."""
    evidence, _ = tools
    for experiment in evidence.experiments():
        cfg = Config.fromfile(evidence.FOLDER / experiment.config)
        cfg.merge_from_dict(experiment.options)
        if experiment.start:
            assert experiment.start[0] in {e.name for e in evidence.experiments()}
        assert set(experiment.settings) <= {
            'config', 'options', 'start', 'calibrate', 'fall', 'probe', 'bf16'}
    titles = [(e.group, e.title) for e in evidence.experiments()]
    assert len(set(titles)) == len(titles)


# -------------------------------------------------------------------------------- statistics


def test_paired_difference_is_the_paired_t_interval(page):
    a, b = {0: 51.2, 1: 50.4, 2: 53.9, 7: 0.}, {2: 52.1, 0: 50.9, 1: 48.8}
    center, half, deviation, count = page.difference(a, b)
    paired = stats.ttest_rel([a[i] for i in range(3)], [b[i] for i in range(3)])
    low, high = paired.confidence_interval(.95)
    assert count == 3 and center == pytest.approx((low + high) / 2)
    assert half == pytest.approx((high - low) / 2)
    assert page.difference({0: 1.}, {1: 1.}) is None
    assert page.difference({0: 3.}, {0: 1.}) == (2., None, None, 1)
    needed = page.seeds_for(deviation, 1.)
    assert stats.t.ppf(.975, needed - 1) * deviation / needed ** .5 <= 1
    assert stats.t.ppf(.975, needed - 2) * deviation / (needed - 1) ** .5 > 1


def test_slope_is_the_least_squares_line(page):
    x, y = [1, 2, 3, 5], [40.1, 41.7, 41.2, 44.]
    assert page.slope(x, y) == pytest.approx(stats.linregress(x, y).slope)
    values = [48.2, 50.9, 47.1]
    assert page.spread(values) == (
        f'{statistics.mean(values):.1f} ± {stats.sem(values):.1f}')


@pytest.fixture
def made(tools, tmp_path):
    """Results of two experiments, two and three seeds."""
    evidence, page = tools
    folder = tmp_path / 'results'
    folder.mkdir()
    path = tmp_path / 'experiments.yml'
    path.write_text(yaml.safe_dump([dict(
        group='g', config='c.py', metric='accuracy/top1', tests={'own': 'own', 'dense': None},
        experiments={'a': {'title': 'A'}, 'b': {'title': 'B', 'options': {'x': 1}}})],
        sort_keys=False))
    experiments = evidence.experiments(path)

    def put(key, seed, value, **more):
        e = next(e for e in experiments if e.key == key)
        found = dict(experiment=e.name, seed=seed, settings=e.settings, parameters=1234, epochs=4,
                     curve=[{'epoch': i, 'loss': 1., 'accuracy/top1': value - 4 + i}
                            for i in range(1, 5)],
                     tests={'own': {'accuracy/top1': value}, 'dense': {'accuracy/top1': value - 1}})
        (folder / f'{e.name}-{seed}.json').write_text(page.dumps(found | more))

    for seed, value in enumerate((50., 52.)):
        put('a', seed, value)
    for seed, value in enumerate((53., 55.5, 54.)):
        put('b', seed, value)
    return lambda: page.Results(experiments, folder), put


def test_blocks_are_filled(page, made):
    results = made[0]()
    text = ('text 1\n<!-- evidence: table g -->\nold 99.9\n<!-- end -->\n'
            '- <!-- evidence: compare g.b g.a -->old<!-- end --> rest')
    out = page.render(text, results)
    assert '99.9' not in out and 'old' not in out and out.endswith('<!-- end --> rest')
    assert '| A | 1,234 | 51.0 ± 1.0 | 2 |  |' in out
    assert '| B | 1,234 | 54.2 ± 0.7 | 3 | +3.2 (+0.1 to +6.4) |' in out
    assert '+3.2 points, 95 % interval +0.1 to +6.4 (2 seeds, paired): **higher**; ± 1' in out
    assert page.render(out, results) == out
    assert '| B | 54.2 ± 0.7 |' not in page.matrix(results, 'g')
    assert '| B | 53.2 ± 0.7 |' in page.matrix(results, 'g')
    # B is 3 above A: at A's last accuracy (50, 52) in its first (50 >= 50) and first (52.5) epoch
    assert '| B | 1.0 ± 0.0 | 2 of 2 |' in page.epochs_to(results, 'g.a', 'g.b')
    with pytest.raises(ValueError, match="calls 'tabel'"):
        page.render('<!-- evidence: tabel g -->x<!-- end -->', results)


def test_results_of_other_settings_are_refused(page, made):
    results, put = made
    put('a', 0, 50., settings={'config': 'c.py', 'options': {'x': 2}})
    with pytest.raises(ValueError, match='made with other settings'):
        results()
    put('a', 0, 50., experiment='g.gone')
    with pytest.raises(ValueError, match='belongs to no experiment'):
        results()


def test_first_seeds_come_first(tools):
    evidence, _ = tools
    runs = evidence.runs_of(evidence.choose(['scratch', 'dmst']), 5)
    labels = [run.label for run in runs]
    assert labels[0] == 'scratch.plain-0' and len(labels) == 7 * 5
    assert labels.index('dmst.mhsa-2') < labels.index('scratch.plain-3')
    assert labels.index('scratch.schedule-.9-.1-0') < labels.index('scratch.plain-1')
    with pytest.raises(SystemExit, match='scratch-more'):
        evidence.choose(['scrach'])


# ------------------------------------------------------------------------------------- a run


@pytest.fixture
def digits(tmp_path):
    """Ten classes of eight images in folders train and test."""
    import numpy as np
    from PIL import Image
    generator = np.random.default_rng(0)
    for split in ('train', 'test'):
        for label in range(10):
            folder = tmp_path / 'data/cifar10_sample' / split / str(label)
            folder.mkdir(parents=True)
            for i in range(8):
                image = generator.integers(0, 60, (32, 32, 3), dtype=np.uint8)
                image[8 * label:8 * label + 8] += 150
                Image.fromarray(image).save(folder / f'{i}.jpg')
    return tmp_path


def test_run_leaves_its_result_and_is_not_repeated(tools, digits, tmp_path, monkeypatch, capsys):
    evidence, _ = tools
    monkeypatch.setattr(evidence, 'WORK', tmp_path / 'work')
    monkeypatch.setattr(evidence, 'RESULTS', tmp_path / 'results')
    written = []
    monkeypatch.setattr(evidence, 'write_page', lambda: written.append(1))
    evidence.RESULTS.mkdir()
    everything = {e.name: e for e in evidence.experiments()}
    tiny = {'train_cfg.max_epochs': 2, 'train_cfg.val_interval': 1,
            'param_scheduler.1.T_max': 2,
            'model.backbone.arch.embed_dim': 16, 'model.backbone.arch.depth': 2,
            'model.head.in_channels': 16, 'train_dataloader.batch_size': 16}
    experiments = [everything[name]._replace(
        options=everything[name].options | tiny, **more) for name, more in (
            ('scratch.schedule-.9-.1', dict(fall=1)), ('dmst.dmsa', {}),
            ('scratch.uniform-.5', dict(calibrate=.3, tests={'.7': .7})),
            ('scratch-more.uniform-.3', dict(probe=[32, 32])),
            ('scratch-more.uniform-.7', dict(start=['scratch.schedule-.9-.1', 'load_from'])))]
    runs = [evidence.Run(e, 0) for e in experiments]
    evidence.work(runs, digits, float('inf'))
    found = [json.loads(run.result.read_text()) for run in runs]
    schedule, dmsa, calibrated, probed, started = found
    assert [point['epoch'] for point in schedule['curve']] == [1, 2]
    assert set(schedule['tests']) == set(experiments[0].tests)
    assert schedule['tests']['own'] == schedule['tests']['.9→.1'] == {
        'accuracy/top1': schedule['curve'][-1]['accuracy/top1']}
    assert schedule['measured']['kept'] == pytest.approx([57 / 64, 6 / 64], abs=1e-4)
    rates = dmsa['measured']
    assert len(rates['variational']) == 2 and all(
        gated < full for gated, full in zip(
            rates['variational'], rates['variational, full subspace'], strict=True))
    assert dmsa['curve'][-1]['coding_rate'] == rates
    assert calibrated['measured']['spread of the bias'][0] > .1
    assert calibrated['measured']['kept'] == [.5, .5]  # as before it was tested at .7
    assert 'curve' not in probed and 25 < probed['tests']['own']['accuracy/top1'] <= 100
    assert [point['epoch'] for point in started['curve']] == [1, 2]  # not resumed as finished
    before = [run.result.stat().st_mtime_ns for run in runs]
    evidence.work(runs, digits, float('inf'))
    assert [run.result.stat().st_mtime_ns for run in runs] == before
    assert len(written) == 5
    assert '5 of 5 runs done; left: 0.0 hours' in evidence.status(runs, 1)
    runs[0].result.unlink()
    capsys.readouterr()
    with evidence.claimed(runs[0]) as mine, evidence.claimed(runs[0]) as other:
        assert mine and not other
    with evidence.claimed(runs[1]) as mine:
        assert not mine
    like = runs[1]._replace(seed=1)
    evidence.work([runs[1], like], digits, 0)
    assert 'left for another call' in capsys.readouterr().out and not like.result.exists()
