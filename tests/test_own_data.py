"""docs/own_data.md as printed, on data made here, with fewer iterations."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import mmext.registry  # noqa: F401
from mmext.cli.config_check import check_config
from mmext.cli.launch import build_model, load_config

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / 'docs' / 'own_data.md').read_text()
FILES = dict(re.findall(r'<!-- file: (\S+) -->\n```python\n(.*?)```', PAGE, re.S))
COMMANDS = [line for block in re.findall(r'```bash\n(.*?)```', PAGE, re.S)
            for line in block.splitlines() if line.startswith('mmext ')]
SHORT = {'my_classifier.py': 'train_cfg.max_iters=2 train_cfg.val_interval=2 '
                             'default_hooks.checkpoint.interval=2',
         'my_detector.py': 'train_cfg.max_iters=2 train_cfg.val_interval=2 '
                           'default_hooks.checkpoint.interval=2 train_dataloader.batch_size=2'}


@pytest.fixture
def folder(tmp_path):
    """Both kinds of data: sub-folders, names with spaces, ids with gaps, an empty image."""
    rng = np.random.default_rng(0)

    def image(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (90, 120, 3), dtype=np.uint8)).save(path)

    for split in ('train', 'val'):
        for name in ('daisy', 'tulip'):
            for place in ('0.jpg', 'one more/1.jpg'):
                image(tmp_path / 'data/flowers' / split / name / place)
        names = [f'{split}/a b/{i}.jpg' for i in range(3)]
        for name in names:
            image(tmp_path / 'data/pets/images' / name)
        (tmp_path / f'data/pets/{split}.json').write_text(json.dumps(dict(
            images=[dict(id=5 * i, file_name=name, width=120, height=90)
                    for i, name in enumerate(names)],
            categories=[dict(id=3, name='cat'), dict(id=9, name='dog')],
            annotations=[dict(
                id=i + 1, image_id=5 * i, category_id=3 + 6 * i, bbox=[10, 10, 40, 40], area=1600,
                iscrowd=0, segmentation=[[10, 10, 50, 10, 50, 50, 10, 50]]) for i in range(2)])))
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.slow
def test_commands_of_the_page(folder):
    assert len(COMMANDS) == 6 and len(FILES) == 2
    for command in COMMANDS:
        command = re.sub('iter_(600|2000)', 'iter_2', command)
        if command.startswith('mmext train'):
            command += f' --cfg-options {SHORT[command.split()[2]]}'
        run = subprocess.run([sys.executable, '-m', *command.replace('"', '').split()], cwd=folder,
                             env={**os.environ, 'PYTHONPATH': str(ROOT)}, capture_output=True,
                             text=True)
        assert run.returncode == 0, f'{command}\n{run.stdout[-2000:]}\n{run.stderr[-3000:]}'
    found = json.loads((folder / 'outputs/flowers/predictions.json').read_text())
    assert len(found) == 4 and {one['class'] for one in found.values()} <= {'daisy', 'tulip'}
    assert (folder / 'outputs/flowers/vis/tulip/one more/1.jpg').exists()
    images = json.loads((folder / 'outputs/pets/images.json').read_text())
    assert len(images['images']) == 6
    assert [one['name'] for one in images['categories']] == ['cat', 'dog']


@pytest.mark.parametrize('size', ['small', 'full'])
def test_configs_of_the_page(folder, monkeypatch, size):
    """As printed, and with the one line changed that the page names."""
    monkeypatch.chdir(folder)
    for name, text in FILES.items():
        if size == 'full':
            text = re.sub(r"\A_base_ = .*\n# full size: ", '', text)
            assert text.startswith('_base_ = ') and text.count('_base_ = ') == 1
            Path(name).write_text(text)
        cfg = load_config(name, None, 'work', 'none')
        check_config(cfg)
        model = build_model(cfg)
        head = getattr(model, 'head', None)
        if head is not None:
            assert head.fc.out_features == 2
            wanted = (size == 'full')
            crop = cfg.val_dataloader.dataset.pipeline[2].crop_size
            assert crop == (224 if wanted else cfg.model.backbone.img_size)
            assert wanted == ('dl.fbaipublicfiles.com' in str(cfg.model.backbone.get('init_cfg')))
            assert cfg.val_evaluator.topk == 1
        else:
            assert model.roi_head.bbox_head.fc_cls.out_features == 3
            assert (cfg.model.backbone.init_cfg is None) == (size == 'small')
            from mmdet.registry import DATASETS
            data = DATASETS.build(cfg.train_dataloader.dataset)
            labels = [one['bbox_label'] for i in range(len(data))
                      for one in data.get_data_info(i)['instances']]
            assert labels == [0, 1]
