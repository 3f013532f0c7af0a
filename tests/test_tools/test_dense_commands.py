"""Train, save, resume, test, draw and demo of every dense task on digits, by the real commands."""

import json
import os
import subprocess
import sys

import cv2
import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def digits(root_dir, tmp_path_factory):
    out = tmp_path_factory.mktemp('data') / 'digits'
    subprocess.run(
        [sys.executable, str(root_dir / 'tools/dataset_converters/digits.py'), '--out', str(out),
         '--train', '8', '--val', '4', '--cls-copies', '1'], check=True, capture_output=True)
    return out


@pytest.mark.parametrize('name, part, key', [
    ('panoptic_fpn', 'panoptic', 'coco_panoptic/PQ'), ('semantic_fpn', 'panoptic', 'mIoU'),
    ('mask2former', 'panoptic', 'coco_panoptic/PQ'), ('dino', 'detection', 'coco/bbox_mAP'),
    ('retinanet', 'detection', 'coco/bbox_mAP'),
    ('mask_rcnn_timm-vit', 'detection', 'coco/segm_mAP'),
    ('mask_rcnn_dinov2', 'detection', 'coco/segm_mAP')])
def test_train_resume_test_and_draw(root_dir, digits, tmp_path, name, part, key):
    config = root_dir / 'configs/quickstart' / f'digits_{name}.py'
    work = tmp_path / 'work'
    data = f'data_root={digits / part}/'

    def run(tool, *args, iters=2):
        command = [sys.executable, str(root_dir / 'tools' / tool), *map(str, args)]
        if tool != 'demo.py':
            command += ['--work-dir', str(work), '--cfg-options', data,
                        'model.backbone.init_cfg=None', 'train_dataloader.batch_size=2',
                        f'train_cfg.max_iters={iters}', 'train_cfg.val_interval=2',
                        'default_hooks.checkpoint.interval=2']
            if name == 'retinanet':  # which finds nothing above .05 after four iterations
                command += ['model.test_cfg.score_thr=0']
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path,
                              env={**os.environ, 'OMP_NUM_THREADS': '1'})
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout + done.stderr

    run('train.py', config)
    run('train.py', config, '--resume', iters=4)
    found = json.loads((work / 'metrics.json').read_text())
    assert found['finished'] and [entry['iter'] for entry in found['history']] == [2, 4]
    assert key in found['best']
    assert (work / 'predictions.png').stat().st_size > 10000
    checkpoint = work / found['checkpoint']
    run('test.py', config, checkpoint, '--out', tmp_path / 'metrics.json', '--show-dir',
        tmp_path / 'shown')
    metrics = json.loads((tmp_path / 'metrics.json').read_text())
    assert metrics[key] == pytest.approx(found['history'][-1][key])
    assert len(list((tmp_path / 'shown').rglob('*.png'))) == 4

    image = digits / part / 'val' / '000000.png'
    printed = run('demo.py', image, config, checkpoint, '--out-dir', tmp_path / 'demo')
    assert '1 of 1 images' in printed
    assert cv2.imread(str(tmp_path / 'demo/vis/000000.png')).shape == (128, 128, 3)
    if part == 'detection':
        results = json.loads((tmp_path / 'demo/results.json').read_text())
        assert all(one['image_id'] == 1 and len(one['bbox']) == 4 for one in results)
    else:
        kind = 'semantic' if name == 'semantic_fpn' else 'panoptic'
        png = cv2.imread(str(tmp_path / f'demo/{kind}/000000.png.png'), -1)
        assert png.shape[:2] == (128, 128)
        if kind == 'panoptic':
            [entry] = json.loads((tmp_path / 'demo/panoptic.json').read_text())['annotations']
            assert isinstance(entry['segments_info'], list)
