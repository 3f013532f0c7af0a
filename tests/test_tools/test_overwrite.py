"""No tool replaces what is there unless told: the file stays byte for byte, one line says how."""

import importlib.util
import json
import shlex
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from small_classifier import CLASSIFIER

from mmext.cli.clear_errors import one_clear_error

TOOLS = Path(__file__).resolve().parents[2] / 'tools'
FIGURE = 'cls.py none.pth --images a.png --out out'
# Tool, words, the file that is there. The checkpoints, configs and data named none... do not
# exist: a tool that looked at them before its outputs would say so instead.
CASES = [
    ('models', '--json mine', 'mine'),
    ('demo', 'a.png none.py a.png --out-dir out', 'out/vis/a.png'),
    ('demo', 'a.png none.py a.png --out-dir out', 'out/results.json'),
    ('demo', 'a.png none.py a.png --out-dir out', 'out/predictions.json'),
    ('demo', 'a.png none.py a.png --out-dir out', 'out/panoptic.json'),
    ('demo', 'a.png none.py a.png --out-dir out', 'out/panoptic/a.png.png'),
    ('demo', 'a.png none.py a.png --out-dir out', 'out/semantic/a.png.png'),
    ('test', 'cls.py none.pth --out mine.json', 'mine.json'),
    ('test', 'cls.py none.pth --out mine.pkl', 'mine.pkl'),
    ('test', 'cls.py none.pth --show-dir out', 'out/any.png'),
    ('analysis_tools/attention_maps', FIGURE, 'out/attention_a.png'),
    ('analysis_tools/attention_maps', f'{FIGURE} --json', 'out/attention_maps.json'),
    ('analysis_tools/attention_maps', f'{FIGURE} --json mine', 'mine'),
    ('analysis_tools/bias_correlation', FIGURE, 'out/bias_correlation.png'),
    ('analysis_tools/bias_correlation', FIGURE, 'out/bias_scatter.png'),
    ('analysis_tools/bias_correlation', f'{FIGURE} --json', 'out/bias_correlation.json'),
    ('analysis_tools/bias_decomposition', FIGURE, 'out/decomposition_a.png'),
    ('analysis_tools/bias_decomposition', FIGURE, 'out/kept_a.png'),
    ('analysis_tools/bias_decomposition', f'{FIGURE} --json', 'out/bias_decomposition.json'),
    ('analysis_tools/coding_rate', FIGURE, 'out/coding_rate.png'),
    ('analysis_tools/coding_rate', f'{FIGURE} --json', 'out/coding_rate.json'),
    ('analysis_tools/membership_maps', FIGURE, 'out/membership_a.png'),
    ('analysis_tools/membership_maps', f'{FIGURE} --json', 'out/membership_maps.json'),
    ('analysis_tools/oracle_gap', FIGURE, 'out/oracle_gap.png'),
    ('analysis_tools/oracle_gap', f'{FIGURE} --json', 'out/oracle_gap.json'),
    ('analysis_tools/keep_ratio_sweep', FIGURE, 'out/keep_ratio_sweep.png'),
    ('analysis_tools/keep_ratio_sweep', FIGURE, 'out/schedule_search.png'),
    ('analysis_tools/keep_ratio_sweep', FIGURE, 'out/searched_schedule_0.py'),
    ('analysis_tools/keep_ratio_sweep', f'{FIGURE} --json', 'out/keep_ratio_sweep.json'),
    ('analysis_tools/keep_ratio_sweep', f'{FIGURE} --budget-gflops 1 2',
     'out/searched_schedule_1.py'),
    ('analysis_tools/benchmark', 'detector --config none.py --json mine', 'mine'),
    ('analysis_tools/benchmark', 'layer --plot mine.png', 'mine.png'),
    ('analysis_tools/get_flops', 'none.py --json mine', 'mine'),
    ('analysis_tools/eval_coco', '--gt coco.json --results coco.json --json mine', 'mine'),
    ('analysis_tools/summarize', 'none --json mine', 'mine'),
    ('analysis_tools/summarize', 'none --out out', 'out/summary.md'),
    ('analysis_tools/summarize', 'none --out out', 'out/summary.csv'),
    ('analysis_tools/structured_pruning', 'deit_tiny_patch16_224 --out mine.pth', 'mine.pth'),
    ('analysis_tools/structured_pruning', 'deit_tiny_patch16_224 --out mine.pth', 'mine.json'),
    ('analysis_tools/openmmlab', 'analyze_logs none.py plot_curve log.json --out mine.png',
     'mine.png'),
    ('analysis_tools/openmmlab', 'browse_dataset none.py --output-dir=out --not-show',
     'out/any.png'),
    ('analysis_tools/openmmlab', 'confusion_matrix none.py none.pth --show-path mine.png',
     'mine.png'),
    ('analysis_tools/openmmlab', 'confusion_matrix none.py none.pkl out',
     'out/confusion_matrix.png'),
    ('dataset_converters/check_coco', 'none.json --json mine', 'mine'),
    ('dataset_converters/check_coco', '--config none.py --json mine', 'mine'),
    ('dataset_converters/coco_subset', 'none.json mine', 'mine'),
    ('dataset_converters/coco_subset', 'none.json new --split mine=0.5', 'mine'),
    ('dataset_converters/coco_subset', 'none.json new --attribution mine', 'mine'),
    ('dataset_converters/coco_subset', 'coco.json new --image-dir . --copy-to out', 'out/a.png'),
    ('dataset_converters/to_coco', 'labelme images mine', 'mine'),
    ('dataset_converters/imagenet100', 'imagenet out --classes wnids.txt', 'out/train/n1'),
    ('dataset_converters/imagenet100', 'imagenet out --classes wnids.txt', 'out/val/n1'),
    ('model_converters/export', 'none.py --format torch_export --out mine.pt2', 'mine.pt2'),
    ('model_converters/convert_vit', 'none.pth mine.pth --to timm', 'mine.pth'),
    ('dev/exported_detector', 'image.png --json mine', 'mine'),
    ('dev/evaluation_time', '--images 2 --json mine', 'mine'),
    ('dev/gpu_check', '', 'gpu_check.json'),
    ('dev/gpu_check', '--json mine', 'mine'),
]
OTHERS = {  # what holds instead
    'train': 'a work dir is locked and resumed, tests/test_cli/test_work_dir.py',
    'dataset_converters/digits': 'own rule for its folder, test_digits_converter.py',
    'model_converters/publish_model': 'named after its content, below',
    'dev/evidence': 'its results and its page are what it is for', 'dev/env_state': 'prints',
    'dev/quickstart_time': 'prints', 'dev/recovery': 'its rows and their page are what it is for',
}


@pytest.fixture(scope='module')
def inputs(tmp_path_factory):
    path = tmp_path_factory.mktemp('inputs')
    (path / 'cls.py').write_text(CLASSIFIER)
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    cv2.imwrite(str(path / 'a.png'), noise)
    (path / 'images').mkdir()
    (path / 'wnids.txt').write_text('n1\n')
    for split in ('train', 'val'):
        (path / 'imagenet' / split / 'n1').mkdir(parents=True)
    (path / 'coco.json').write_text(json.dumps({
        'images': [{'id': 1, 'file_name': 'a.png', 'height': 64, 'width': 64}],
        'categories': [{'id': 1, 'name': 'thing'}],
        'annotations': [{'id': 1, 'image_id': 1, 'category_id': 1, 'bbox': [0, 0, 9, 9],
                         'area': 81, 'iscrowd': 0}]}))
    return path


@pytest.fixture
def place(inputs, tmp_path, monkeypatch):
    for path in inputs.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(name, words, monkeypatch):
    spec = importlib.util.spec_from_file_location(f'over_{Path(name).stem}', TOOLS / f'{name}.py')
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    monkeypatch.setattr(sys, 'argv', [f'{name}.py', *shlex.split(words)])
    try:
        with one_clear_error():
            return tool.main()
    except SystemExit as end:
        return end.code


@pytest.mark.parametrize('name, words, mine', CASES, ids=[f'{n}-{m}' for n, _, m in CASES])
def test_what_is_there_stays(name, words, mine, place, monkeypatch, capsys):
    mine = place / mine
    mine.parent.mkdir(parents=True, exist_ok=True)
    mine.write_bytes(b'mine')
    before = sorted(place.rglob('*'))
    code = run(name, words, monkeypatch)
    err = capsys.readouterr().err
    assert code == 1 and 'Traceback' not in err
    assert '--overwrite' in err.strip().splitlines()[-1], err
    assert mine.read_bytes() == b'mine' and sorted(place.rglob('*')) == before


@pytest.mark.parametrize('name, words, mine', [
    ('models', '--json mine --overwrite', 'mine'),
    ('dataset_converters/coco_subset', 'coco.json mine --overwrite', 'mine'),
    ('dataset_converters/coco_subset',
     'coco.json new --image-dir . --copy-to out --overwrite', 'out/a.png'),
    ('dataset_converters/check_coco', 'coco.json --json mine --overwrite', 'mine'),
    ('analysis_tools/get_flops', 'cls.py --json mine --overwrite', 'mine'),
    ('analysis_tools/attention_maps', 'cls.py --images a.png --out out --json mine --overwrite',
     'mine'),
    ('analysis_tools/oracle_gap', 'cls.py --images a.png --out out --overwrite',
     'out/oracle_gap.png'),
])
def test_what_is_there_goes_when_told(name, words, mine, place, monkeypatch, capsys):
    mine = place / mine
    mine.parent.mkdir(parents=True, exist_ok=True)
    mine.write_bytes(b'mine')
    assert not run(name, words, monkeypatch), capsys.readouterr().err
    assert mine.read_bytes() != b'mine'


@pytest.mark.parametrize('name, words, mine', [
    ('demo', 'out/vis none.py a.png --out-dir out', 'out/vis/a.png'),
    ('dataset_converters/coco_subset', 'mine mine', 'mine'),
    ('dataset_converters/coco_subset', 'coco.json new --image-dir out --copy-to out',
     'out/a.png'),
    ('dataset_converters/check_coco', 'mine --json mine', 'mine'),
    ('dataset_converters/check_coco', '--config mine.py --json mine.py', 'mine.py'),
    ('analysis_tools/get_flops', 'mine.py --json mine.py', 'mine.py'),
    ('analysis_tools/benchmark', 'detector --config mine.py --json mine.py', 'mine.py'),
    ('analysis_tools/oracle_gap', 'cls.py mine.pth --images a.png --json mine.pth', 'mine.pth'),
    ('dataset_converters/imagenet100', 'imagenet imagenet --classes wnids.txt',
     'imagenet/train/n1/0.JPEG'),
    ('dataset_converters/to_coco', 'labelme out out/mine.json', 'out/mine.json'),
])
def test_no_input_goes_even_when_told(name, words, mine, place, monkeypatch, capsys):
    if name == 'dataset_converters/to_coco':
        pytest.importorskip('supervision', reason='the converter needs mmext[convert]')
    mine = place / mine
    mine.parent.mkdir(parents=True, exist_ok=True)
    mine.write_text('{"shapes": []}')
    before = sorted(place.rglob('*'))
    assert run(name, f'{words} --overwrite', monkeypatch) == 1
    assert 'input' in capsys.readouterr().err.strip().splitlines()[-1]
    assert mine.read_text() == '{"shapes": []}' and sorted(place.rglob('*')) == before


@pytest.mark.parametrize('name, words', [
    ('analysis_tools/benchmark', 'layer --json mine --plot mine'),
    ('analysis_tools/structured_pruning', 'deit_tiny_patch16_224 --out mine.json'),
    ('analysis_tools/summarize', 'none --out out --json out/summary.csv'),
    ('dataset_converters/coco_subset', 'coco.json mine --split mine=0.5'),
    ('dataset_converters/coco_subset', 'coco.json mine --attribution ./mine'),
])
def test_one_output_over_another(name, words, place, monkeypatch, capsys):
    before = sorted(place.rglob('*'))
    assert run(name, words, monkeypatch) == 1
    assert 'twice' in capsys.readouterr().err.strip().splitlines()[-1]
    assert sorted(place.rglob('*')) == before


def test_published_file_of_other_content(place, monkeypatch, capsys):
    """The name holds eight digits of the hash: what bears it need not be the same file."""
    torch.save({'state_dict': {'a': torch.ones(2)}, 'meta': {}}, place / 'run.pth')
    name = 'model_converters/publish_model'
    assert run(name, 'run.pth out.pth', monkeypatch) == 0
    [final] = place.glob('out-*.pth')
    good = final.read_bytes()
    assert run(name, 'run.pth out.pth', monkeypatch) == 0  # the same file
    final.write_bytes(b'mine')
    capsys.readouterr()
    assert run(name, 'run.pth out.pth', monkeypatch) == 1
    assert '--overwrite' in capsys.readouterr().err and final.read_bytes() == b'mine'
    assert run(name, 'run.pth out.pth --overwrite', monkeypatch) == 0
    assert final.read_bytes() == good


def test_links_to_the_same_folders_may_be_made_again(place, monkeypatch, capsys):
    name, words = 'dataset_converters/imagenet100', 'imagenet out --classes wnids.txt'
    for _ in range(2):
        assert not run(name, words, monkeypatch), capsys.readouterr().err
    link = place / 'out' / 'train' / 'n1'
    link.unlink()
    link.symlink_to(place / 'images')
    assert run(name, words, monkeypatch) == 1
    assert '--overwrite' in capsys.readouterr().err and link.samefile(place / 'images')
    assert not run(name, f'{words} --overwrite', monkeypatch)
    assert link.samefile(place / 'imagenet' / 'train' / 'n1')


def test_every_tool_is_tried():
    tools = {str(path.relative_to(TOOLS).with_suffix('')) for path in TOOLS.rglob('*.py')}
    assert tools <= {name for name, _, _ in CASES} | set(OTHERS)
