"""The documentation: files it names exist, options it shows are real, marked commands run."""

import ast
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCS = [ROOT / 'README.md', *sorted((ROOT / 'docs').glob('*.md')),
        *sorted((ROOT / 'configs').glob('*/README.md'))]
BLOCK = re.compile(r'(?:<!-- (run|file: \S+) -->\n)?```(\w+)\n(.*?)```', re.S)


def blocks(doc, language=None):
    return [(mark, text) for mark, lang, text in BLOCK.findall(doc.read_text())
            if language in (None, lang) or (language, lang) == ('bash', 'shell')]


def commands(text):
    """Shell lines, continued ones joined, comments out."""
    lines = re.sub(r'\\\n\s*', ' ', text).splitlines()
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith('#')]


@cache
def help_of(tool):
    run = subprocess.run([sys.executable, ROOT / tool, '--help'], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_there_are_docs():
    assert len(DOCS) > 4


@pytest.mark.parametrize('doc', DOCS, ids=lambda p: str(p.relative_to(ROOT)))
def test_paths_exist(doc):
    """Checkout paths in text and commands; CAPITALS and <...> stand for the reader's own."""
    text = doc.read_text()
    for path in re.findall(r'(?<![\w./:-])((?:tools|configs|mmext|tests|docs)/[\w./-]*\w)', text):
        if re.search(r'[A-Z]{4}', path) and not path.endswith('README.md'):
            continue
        assert (ROOT / path).exists(), f'{doc.name} names {path}'
    for target in re.findall(r'\]\((?!http)([^)#]+)\)', text):
        assert (doc.parent / target).exists(), f'{doc.name} links to {target}'


@cache
def functions_of(path):
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize('doc', DOCS, ids=lambda p: str(p.relative_to(ROOT)))
def test_named_tests_exist(doc):
    for path, name in re.findall(r'(tests/[\w/]+\.py)::(\w+)', doc.read_text()):
        assert name in functions_of(path), f'{doc.name} names {path}::{name}'


def test_every_report_has_its_tests():
    """Rows of the table of public reports: repository#number, what must hold, tests by name."""
    text = (ROOT / 'docs' / 'contributing.md').read_text()
    table = text.split('## Reports that must not come back')[1].split('\n## ')[0]
    table = table.split('|---|---|---|')[1]
    rows = [line.strip('|').split('|') for line in table.splitlines() if line.startswith('|')]
    assert len(rows) >= 15
    for reports, promise, tests in rows:
        assert re.search(r'[\w-]+#\d+|^found here', reports.strip()) and len(promise) > 10, reports
        assert re.search(r'tests/[\w/]+\.py::test_\w+', tests), reports


@pytest.mark.parametrize('doc', DOCS, ids=lambda p: str(p.relative_to(ROOT)))
def test_options_exist(doc):
    found = [command for _, text in blocks(doc, 'bash') for command in commands(text)]
    found += re.findall(r'`(python tools/[^`\n]+)`', doc.read_text())
    for command in found:
        tool = re.search(r'python (tools/\S+\.py)', command)
        if tool is None:
            continue
        shown = help_of(tool.group(1))
        for option in re.findall(r'(?<=\s)(--[a-z][\w-]*)', command.split(tool.group(1))[1]):
            assert re.search(rf'(?<![\w-]){option}(?![\w-])', shown), f'{command}: {option}'


def test_every_table_and_figure_has_its_line():
    """In docs/papers.md and docs/results.md, by the papers' own numbers."""
    def numbered(text, kind):
        spans = re.findall(rf'(?m)^\| (?:DMSA, )?{kind} ([^|]+) \|', text)
        for first, last in re.findall(r'(\w+)(?:–(\w+))?', ' '.join(spans)):
            yield from [first] if not last else map(str, range(int(first), int(last) + 1))
    papers = (ROOT / 'docs/papers.md').read_text().split('\n## ')
    results = (ROOT / 'docs/results.md').read_text().split('\n## ')
    for page in (papers[1], results[2]):
        assert set(numbered(page, 'Table')) == {str(i) for i in range(1, 13)}
        assert set(numbered(page, 'Fig.')) == {str(i) for i in range(3, 22)}
    assert set(numbered(papers[2], 'Table')) == {'I', 'II', 'III'}
    assert set(numbered(papers[2], 'Fig.')) == {'4', '5', '6'}


def test_published_columns_hold_what_is_printed():
    """Every decimal of the bias paper's tables is in docs/results.md, and none beside them."""
    section = (ROOT / 'docs/results.md').read_text().split('\n## ')[2]
    rows = [line.split('|') for line in section.splitlines() if line.startswith('| Table')]
    found = {n for row in rows for n in re.findall(r'\d+\.\d+', row[2] + row[3])}
    printed = re.findall(r'\S+', '''
        485.60 331.17 1171.68 1017.25 43.3 38.7 42.7 38.1 80.04 93.30 79.66 93.18 49.55 79.70
        92.30 80.48 79.08 92.90 78.40 92.82 78.56 93.14 48.00 80.12 92.54 78.50 92.40 61.58 78.76
        91.92 70.09 78.74 92.94 78.68 92.80 79.58 92.62 78.44 92.42 50.00''')
    assert found - {'1.0'} == set(printed)  # 1.0: clipping and CutMix of Table 5


def test_cells_of_the_readme_are_short():
    text = (ROOT / 'README.md').read_text()
    cells = [cell.split() for line in text.splitlines() if line.startswith('|')
             for cell in line.strip('|').split('|')]
    assert len(cells) > 50 and max(map(len, cells)) <= 30


@pytest.mark.parametrize('doc', [d for d in DOCS if any(m == 'run' for m, _ in blocks(d))],
                         ids=lambda p: str(p.relative_to(ROOT)))
def test_marked_commands_run(doc, tmp_path):
    """In the order of the page, in a folder that only holds links to configs and tools."""
    for name in ('configs', 'tools'):
        (tmp_path / name).symlink_to(ROOT / name)
    if 'digits.py' not in ''.join(t for m, t in blocks(doc) if m == 'run'):
        subprocess.run([sys.executable, ROOT / 'tools/dataset_converters/digits.py', '--out',
                        tmp_path / 'data/digits', '--train', '8', '--val', '4'], check=True,
                       capture_output=True)
    path = f'{Path(sys.executable).parent}{os.pathsep}{os.environ["PATH"]}'
    for mark, text in blocks(doc):
        if mark.startswith('file: '):
            (tmp_path / mark.split()[1]).write_text(text)
        elif mark == 'run':
            run = subprocess.run(['bash', '-euo', 'pipefail', '-c', text], cwd=tmp_path,
                                 env={**os.environ, 'PATH': path}, capture_output=True, text=True)
            assert run.returncode == 0, f'{text}\n{run.stdout[-2000:]}\n{run.stderr[-2000:]}'


def test_config_for_own_data(tmp_path, monkeypatch):
    """The page's two-class config on two images: passes the check, reads them, builds."""
    from mmdet.registry import DATASETS
    from PIL import Image

    from mmext.cli.launch import build_model, load_config
    text = next(t for _, t in blocks(ROOT / 'docs/own_data.md', 'python') if 'data/pets' in t)
    (tmp_path / 'my_detector.py').write_text(text)
    images = tmp_path / 'data/pets/images'
    images.mkdir(parents=True)
    for i in range(2):
        Image.new('RGB', (64, 48), (90 * i, 60, 30)).save(images / f'{i}.jpg')
    found = dict(
        images=[dict(id=i, file_name=f'{i}.jpg', width=64, height=48) for i in range(2)],
        categories=[dict(id=7, name='cat'), dict(id=9, name='dog')],
        annotations=[dict(id=i + 1, image_id=i, category_id=7 + 2 * i, bbox=[8, 8, 20, 20],
                          area=400, iscrowd=0, segmentation=[[8, 8, 28, 8, 28, 28, 8, 28]])
                     for i in range(2)])
    for name in ('train.json', 'val.json'):
        (images.parent / name).write_text(json.dumps(found))
    monkeypatch.chdir(tmp_path)
    check = [sys.executable, ROOT / 'tools/dataset_converters/check_coco.py', '--config',
             'my_detector.py']
    run = subprocess.run(check, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    cfg = load_config('my_detector.py', None, 'work', 'none')
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    assert [entry['instances'][0]['bbox_label'] for entry in
            (dataset.get_data_info(i) for i in range(2))] == [0, 1]
    heads = build_model(cfg).roi_head
    assert heads.bbox_head.fc_cls.out_features == 3 and heads.mask_head.num_classes == 2
    found['categories'][1]['name'] = 'wolf'
    (images.parent / 'train.json').write_text(json.dumps(found))
    run = subprocess.run(check, capture_output=True, text=True)
    assert run.returncode == 1 and 'dog' in run.stdout + run.stderr
