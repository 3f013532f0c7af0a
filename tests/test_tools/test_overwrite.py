"""No tool replaces what is there unless told: refused before any work, the file as it was."""

import importlib.util
import re
import sys

import cv2
import numpy as np
import pytest

from mmext.cli.clear_errors import ConfigError

CONFIG = """
default_scope = 'mmpretrain'
model = dict(
    type='ImageClassifier',
    backbone=dict(type='mmext.BiasPrunedViT', arch='tiny-test', img_size=32),
    head=dict(type='LinearClsHead', num_classes=3, in_channels=32))
"""
# A command, and what it must not replace; @ is the folder of the test
COMMANDS = """
get_flops.py @/config.py --shape 32 --json @/old.json -> old.json
benchmark.py layer --json @/old.json -> old.json
benchmark.py layer --plot @/old.png -> old.png
benchmark.py layer --json @/old.json --against @/old.json --overwrite -> old.json
summarize.py @ --json @/old.json -> old.json
summarize.py @ --out @ -> summary.csv
eval_coco.py --gt @/coco.json --results @/results.json --json @/old.json -> old.json
structured_pruning.py vit_tiny_patch16_224 --out @/old.pth -> old.pth
models.py --json @/old.json -> old.json
gpu_check.py --json @/old.json -> old.json
check_coco.py @/coco.json --json @/old.json -> old.json
check_coco.py @/coco.json --json @/coco.json --overwrite -> coco.json
coco_subset.py @/coco.json @/old.json -> old.json
coco_subset.py @/coco.json @/coco.json --overwrite -> coco.json
coco_subset.py @/coco.json @/new.json --split @/old.json=.5 -> old.json
coco_subset.py @/coco.json @/new.json --attribution @/old.md -> old.md
coco_subset.py @/coco.json @/new.json --image-dir @ --copy-to @/copies -> copies/old.png
to_coco.py labelme @/copies @/old.json -> old.json
digits.py --out @/copies -> copies/old.png
export.py @/config.py --out @/old.onnx -> old.onnx
convert_vit.py @/none.pth @/old.pth --to timm -> old.pth
test.py @/config.py @/none.pth --out @/old.json -> old.json
test.py @/config.py @/none.pth --show-dir @/copies -> copies/old.png
demo.py @/old.png @/config.py @/none.pth --out-dir @/outputs -> outputs/results.json
attention_maps.py @/config.py --out @ -> attention_one.png
bias_correlation.py @/config.py --out @ -> bias_scatter.png
bias_decomposition.py @/config.py --out @ -> kept_one.png
coding_rate.py @/config.py --out @ -> coding_rate.png
keep_ratio_sweep.py @/config.py --out @ -> schedule_search.png
membership_maps.py @/config.py --out @ -> membership_one.png
oracle_gap.py @/config.py --out @ -> oracle_gap.png
oracle_gap.py @/config.py --out @ --json -> oracle_gap.json
""".strip().splitlines()


def main_of(tool):
    spec = importlib.util.spec_from_file_location('tool_under_test', tool)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


@pytest.mark.parametrize('line', COMMANDS)
def test_nothing_is_replaced_unasked(root_dir, tmp_path, monkeypatch, capsys, line):
    command, existing = line.split(' -> ')
    (tmp_path / 'config.py').write_text(CONFIG)
    (tmp_path / 'none.pth').write_bytes(b'a checkpoint')
    (tmp_path / 'results.json').write_text('[]')
    (tmp_path / 'coco.json').write_text(
        '{"images": [{"id": 1, "file_name": "old.png", "height": 8, "width": 8}], "annotations": '
        '[{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 1, 4, 4], "area": 16, '
        '"iscrowd": 0}], "categories": [{"id": 1, "name": "one"}]}')
    (tmp_path / 'copies').mkdir()
    for folder in ('', 'copies'):
        cv2.imwrite(str(tmp_path / folder / 'old.png'), np.zeros((8, 8, 3), np.uint8))
    target = tmp_path / existing
    target.parent.mkdir(exist_ok=True)
    if not target.exists():
        target.write_text('what was there')
    before = target.read_bytes()
    tool, *options = command.replace('@', str(tmp_path)).split()
    [tool] = (root_dir / 'tools').rglob(tool)
    monkeypatch.setattr(sys, 'argv', [str(tool), *options])
    monkeypatch.chdir(tmp_path)
    try:
        assert main_of(tool)() == 1
        said = capsys.readouterr().err
    except (ConfigError, SystemExit) as error:
        said = str(error)
    assert target.read_bytes() == before
    assert re.search(r'--overwrite|is an input of this command|give another --out', said), said
    assert str(target) in said or str(target.parent) in said, said
