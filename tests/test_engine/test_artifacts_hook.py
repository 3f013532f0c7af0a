"""What a run leaves in its work dir, against mmengine's own log and known images."""

import json
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmengine.runner import Runner
from mmengine.structures import InstanceData
from mmpretrain.structures import DataSample

from mmext.engine import artifacts_hook as hooks


def quickstart_config(root_dir, digits, work_dir, name):
    cfg = Config.fromfile(root_dir / 'configs' / 'quickstart' / f'{name}.py')
    cfg.work_dir = str(work_dir)
    cfg.experiment_name = f'{name}_{work_dir.name}'
    task = 'classification' if name == 'digits_cls' else 'detection/'
    for loader in (cfg.train_dataloader, cfg.val_dataloader):
        loader.dataset.data_root = str(digits / task) + ('/' if task.endswith('/') else '')
    if name == 'digits_mask_rcnn':
        cfg.val_evaluator.ann_file = str(
            digits / 'detection' / 'annotations' / 'instances_val.json')
        cfg.model.backbone.init_cfg = None
        cfg.model.test_cfg.rcnn.score_thr = 0
        cfg.train_dataloader.batch_size = 2
        cfg.train_cfg = dict(by_epoch=False, max_iters=4, val_interval=2)
        cfg.default_hooks.checkpoint.interval = 2
        cfg.default_hooks.artifacts.update(score_thr=0., num_images=4)
    else:
        cfg.train_dataloader.dataset.indices = 128
        cfg.val_dataloader.dataset.indices = 64
        cfg.train_cfg = dict(by_epoch=True, max_epochs=2, val_interval=1)
    cfg.default_hooks.logger.interval = 1
    return cfg


def logged(work_dir, key):
    """Values of one key in mmengine's own JSON log, all runs of the work dir."""
    lines = [line for path in sorted(work_dir.glob('*/vis_data/scalars.json'))
             for line in path.read_text().splitlines()]
    return [entry[key] for entry in map(json.loads, lines) if key in entry]


def read(work_dir):
    return json.loads((work_dir / 'metrics.json').read_text())


@pytest.mark.parametrize('name, key, iters', [
    ('digits_cls', 'accuracy/top1', None), ('digits_mask_rcnn', 'coco/segm_mAP', [2, 4])])
def test_a_run_leaves_numbers_curves_and_images(root_dir, digits, tmp_path, name, key, iters):
    runner = Runner.from_cfg(quickstart_config(root_dir, digits, tmp_path, name))
    runner.train()
    found = read(tmp_path)
    assert found['finished'] and found['iter'] == found['max_iters'] == runner.max_iters
    steps = iters or [runner.max_iters // 2, runner.max_iters]
    assert [entry['iter'] for entry in found['history']] == steps
    assert [entry[key] for entry in found['history']] == pytest.approx(logged(tmp_path, key))
    assert found['metrics'] == found['history'][-1]
    assert found['best'][key]['value'] == max(logged(tmp_path, key))
    assert (tmp_path / found['checkpoint']).is_file()
    for panel in ('curves.png', 'predictions.png'):
        image = cv2.imread(str(tmp_path / panel))
        assert image.std() > 5 and min(image.shape[:2]) > 200
    assert not list(tmp_path.glob('.*.part'))


def test_resuming_goes_on_with_the_history(root_dir, digits, tmp_path):
    cfg = quickstart_config(root_dir, digits, tmp_path, 'digits_mask_rcnn')
    first = cfg.copy()
    first.train_cfg = dict(by_epoch=False, max_iters=2, val_interval=2)
    Runner.from_cfg(first).train()
    before = read(tmp_path)
    cfg.resume = True
    cfg.experiment_name += '_resumed'
    runner = Runner.from_cfg(cfg)
    runner.train()
    after = read(tmp_path)
    assert [entry['iter'] for entry in after['history']] == [2, 4]
    assert after['history'][0] == before['history'][0]
    assert after['seconds'] > before['seconds'] and after['finished']
    # the loss curve is whole, too: mmengine keeps it in the checkpoint
    assert len(runner.message_hub.get_scalar('train/loss').data[0]) == 4


def test_failing_to_draw_is_a_warning(root_dir, digits, tmp_path, monkeypatch):
    def fail(*args):
        raise RuntimeError('no ink left')
    monkeypatch.setattr(hooks, 'draw_sheet', fail)
    monkeypatch.setattr(hooks, 'label_panel', fail)
    cfg = quickstart_config(root_dir, digits, tmp_path, 'digits_cls')
    cfg.train_cfg.max_epochs = 1
    Runner.from_cfg(cfg).train()
    assert read(tmp_path)['finished']
    log = next(tmp_path.glob('*/*.log')).read_text()
    assert 'could not collect images' in log and 'no ink left' in log


def test_custom_hooks_of_a_user_leave_it_in(root_dir, digits, tmp_path):
    cfg = quickstart_config(root_dir, digits, tmp_path, 'digits_cls')
    cfg.custom_hooks = [dict(type='EMAHook')]
    names = [type(hook).__name__ for hook in Runner.from_cfg(cfg).hooks]
    assert names.count('RunArtifactsHook') == names.count('EMAHook') == 1
    for scope in ('cls', 'det'):
        runtime = Config.fromfile(root_dir / 'configs' / '_base_' / f'default_runtime_{scope}.py')
        assert runtime.default_hooks.artifacts.type == 'mmext.RunArtifactsHook'


def test_bad_arguments():
    with pytest.raises(ValueError, match='num_images'):
        hooks.RunArtifactsHook(num_images=0)


# ---------------------------------------------------------------------------- what is drawn


def rendered(figure):
    canvas = hooks.FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3] / 255


def share_of(image, color):
    return (np.abs(image - np.array(color)).max(-1) < .03).mean()


def test_detections_above_the_threshold_are_drawn(tmp_path):
    path = tmp_path / 'gray.png'
    cv2.imwrite(str(path), np.full((60, 80, 3), 200, np.uint8))
    masks = torch.zeros(2, 60, 80, dtype=torch.bool)
    masks[0, 10:30, 10:40] = True
    masks[1, 35:55, 50:75] = True
    sample = DetDataSample(metainfo=dict(img_path=str(path)))
    sample.pred_instances = InstanceData(
        bboxes=torch.tensor([[10., 10, 40, 30], [50, 35, 75, 55]]),
        labels=torch.tensor([3, 5]), scores=torch.tensor([.9, .2]), masks=masks)
    panel = hooks.detection_panel(sample, .5)
    assert [(o['label'], o['box']) for o in panel['objects']] == [(3, [10, 10, 40, 30])]
    assert panel['objects'][0]['mask'].sum() == 600
    image = rendered(hooks.draw_sheet([panel], 1, tuple('abcdefghij')))
    blend = [.4 * 200 / 255 + .6 * c for c in hooks.class_color(3)]
    paper = share_of(image, [200 / 255] * 3)
    # the mask covers 600 of 4,800 pixels, its box and label a little of it
    assert share_of(image, blend) / (paper + share_of(image, blend)) == pytest.approx(.125, abs=.02)
    # boxes without masks work as well
    del sample.pred_instances.masks
    assert hooks.detection_panel(sample, 0.)['objects'][1]['mask'] is None


@pytest.mark.parametrize('to_rgb', [True, False])
def test_labels_and_color_order(to_rgb):
    sample = DataSample().set_gt_label(2).set_pred_label(1).set_pred_score(
        torch.tensor([.1, .7, .2]))
    inputs = torch.zeros(3, 8, 8, dtype=torch.uint8)
    inputs[0] = 200
    model = SimpleNamespace(data_preprocessor=SimpleNamespace(to_rgb=to_rgb))
    panel = hooks.label_panel(sample, inputs, model)
    assert panel['image'][0, 0].tolist() == ([0, 0, 200] if to_rgb else [200, 0, 0])
    assert (panel['label'], panel['truth']) == (1, {2})
    assert panel['score'] == pytest.approx(.7)
    figure = hooks.draw_sheet([panel], 8, ('cat', 'dog', 'cow'))
    assert 'dog' in figure.axes[0].get_title() and 'is cow' in figure.axes[0].get_title()


@pytest.mark.parametrize('columns', [1, 4, 8])
def test_titles_do_not_overlap(columns):
    names = [f'n0{i}, a rather long name of a class' for i in range(9)]
    panels = [dict(image=np.zeros((48, 48, 3), np.uint8), label=i % 9, score=.5,
                     truth={i % 9} if i % 3 else {8 - i % 9, 3}) for i in range(2 * columns)]
    figure = hooks.draw_sheet(panels, columns, names)
    rendered(figure)
    boxes = [axis.title.get_window_extent() for axis in figure.axes]
    panels = [axis.get_window_extent() for axis in figure.axes]
    for i, box in enumerate(boxes):
        assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1
        assert not any(box.overlaps(other) for other in boxes[:i] + panels)


def test_curves_show_every_headline_metric():
    history = [{'iter': i, 'epoch': 0, 'coco/bbox_mAP': i / 100, 'coco/bbox_mAP_50': .9}
               for i in (10, 20)]
    figure = hooks.draw_curves({'loss': np.linspace(3, 1, 20), 'loss_cls': np.ones(20)}, history)
    left, right = figure.axes
    assert [text.get_text() for text in right.get_legend().get_texts()] == [
        'coco/bbox_mAP  (last 0.2)']
    assert right.lines[0].get_xydata().tolist() == [[10, .1], [20, .2]]
    assert {text.get_text() for text in left.get_legend().get_texts()} == {'loss', 'loss_cls'}
    assert hooks.best_of(history) == {'coco/bbox_mAP': {'value': .2, 'iter': 20}}


@pytest.mark.parametrize('kind', ['panoptic', 'semantic'])
def test_segments_are_drawn_in_the_color_of_their_class(tmp_path, kind):
    """Two instances of class 1 beside class 2, and a void corner that stays as the image is."""
    from mmengine.structures import PixelData
    cv2.imwrite(str(tmp_path / 'a.png'), np.full((40, 60, 3), 200, np.uint8))
    ids = np.full((40, 60), 2)
    ids[:20, :20], ids[:20, 40:] = (1001, 2001) if kind == 'panoptic' else (1, 1)
    ids[30:, :10] = 3
    sample = DetDataSample(metainfo=dict(img_path=str(tmp_path / 'a.png')))
    sample.set_field(PixelData(sem_seg=torch.from_numpy(ids)[None]),
                     'pred_panoptic_seg' if kind == 'panoptic' else 'pred_sem_seg')
    panel = hooks.segmentation_panel(sample)
    labels = [label for label, _ in panel['segments']]
    assert sorted(labels) == ([1, 1, 2, 3] if kind == 'panoptic' else [1, 2, 3])
    figure = hooks.draw_sheet([panel], 1, ['void', 'cat', 'grass'])
    [axis] = figure.axes
    shown = axis.images[0].get_array()
    gray = 200 / 255
    for (y, x), label in {(10, 10): 1, (10, 50): 1, (35, 30): 2}.items():
        np.testing.assert_allclose(
            shown[y, x], .5 * gray + .5 * np.array(hooks.class_color(label)), atol=1e-3)
    np.testing.assert_allclose(shown[19, 5], hooks.class_color(1), atol=1e-3)  # the edge
    np.testing.assert_allclose(shown[38, 2], gray, atol=1e-3)
    assert sorted(text.get_text() for text in axis.texts) == sorted(
        ['cat'] * (2 if kind == 'panoptic' else 1) + ['grass'])
