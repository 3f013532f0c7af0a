"""An exported detector finds what mmdet's predict finds, and the script of docs/deploy.md uses it
where neither torch nor mmext can be imported."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from detection_helpers import MASKED, PAIR, build, small_config
from mmengine.runner import load_checkpoint

from mmext.cli.launch import build_model, load_config
from mmext.cli.package_files import trained_model
from mmext.models.detection.exportable import ExportableDetector, nms_by_group


def make(name):
    cfg = small_config(name)
    if name == MASKED:  # its own canvas would be smaller than that of the file
        cfg.model.data_preprocessor.val_pad_size_divisor = 128
    model = build(cfg).eval().requires_grad_(False)
    return model, ExportableDetector(model).eval()


def predict(model, image, extent):
    """mmdet's own way: BGR bytes in, results of the first sample out."""
    from mmdet.structures import DetDataSample
    sample = DetDataSample(metainfo=dict(
        img_shape=extent, ori_shape=extent, scale_factor=(1., 1.), pad_shape=extent))
    with torch.no_grad():
        return model.test_step(dict(inputs=[image.flip(0)], data_samples=[sample]))[0]


@pytest.mark.parametrize('name', [PAIR, MASKED])
@pytest.mark.parametrize('extent', [(128, 128), (90, 128), (128, 60)])
def test_equals_predict(name, extent):
    model, part = make(name)
    image = torch.randint(0, 256, (3, *extent), generator=torch.Generator().manual_seed(0))
    canvas = torch.full((1, 3, 128, 128), 99.)
    canvas[0, :, :extent[0], :extent[1]] = image
    want = predict(model, image.to(torch.uint8), extent).pred_instances
    with torch.no_grad():
        boxes, scores, labels, masks = part(canvas, torch.tensor(extent))
    assert len(want) == 10 and masks.shape == (10, 28, 28)
    torch.testing.assert_close(scores, want.scores, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(boxes, want.bboxes, atol=1e-2, rtol=1e-4)
    assert labels.tolist() == want.labels.tolist()


def test_nms_by_group():
    """Two boxes at one place: one stays in a group, both where the groups differ."""
    boxes = torch.tensor([[0., 0, 10, 10], [0, 0, 10, 10], [0, 0, 10, 10], [50, 50, 60, 60]])
    scores = torch.tensor([.5, .9, .7, .8])
    fit = torch.tensor([True, True, True, False])
    groups = torch.tensor([0, 0, 1, 0])
    assert nms_by_group(boxes, scores, groups, fit, .5, 10).tolist() == [1, 2]
    assert nms_by_group(boxes, scores, groups, fit, .5, 1).tolist() == [1]
    assert nms_by_group(boxes, scores, groups, ~fit & False, .5, 10).tolist() == []


def test_others_are_refused():
    name = 'cascade-mask-rcnn_deit-s-bias-0.9-0.1_sfp_lsj-100e_coco.py'
    with pytest.raises(ValueError, match='CascadeRoIHead is not supported, only StandardRoIHead'):
        ExportableDetector(build(small_config(name)))


def test_classes_are_counted(root_dir, load_tool, tmp_path):
    with pytest.raises(ValueError, match='names 10 classes, its roi_head has 7'):
        load_tool('model_converters/export').main([
            str(root_dir / 'configs' / 'quickstart' / 'digits_mask_rcnn.py'), '--detector',
            '--format', 'torch_export', '--out', str(tmp_path / 'a.pt2'), '--cfg-options',
            'model.roi_head.bbox_head.num_classes=7'])


@pytest.fixture
def shipped(load_tool, tmp_path, capsys):
    """The detector of digits that travels with mmext, and its ONNX file."""
    for name in ('onnx', 'onnxscript', 'onnxruntime'):
        pytest.importorskip(name)
    config, weights = trained_model('digits')
    cfg = load_config(config, None, None, 'none')
    model = build_model(cfg).eval().requires_grad_(False)
    load_checkpoint(model, weights, map_location='cpu')
    file = tmp_path / 'detector.onnx'
    assert load_tool('model_converters/export').main(
        [config, weights, '--detector', '--out', str(file)]) == 0, capsys.readouterr().out
    return cfg, model, file


@pytest.mark.slow
def test_mean_average_precision_of_the_file(root_dir, shipped, load_tool, tmp_path):
    """160 canvases: the file's detections against predict's, through CocoMetric; predict's by
    pycocotools, too."""
    import mmcv
    from mmdet.models.roi_heads.mask_heads.fcn_mask_head import _do_paste_mask

    from mmext.cli.export import runner
    from mmext.engine.coco_metric import CocoMetric
    cfg, model, file = shipped
    subprocess.run([sys.executable, root_dir / 'tools' / 'dataset_converters' / 'digits.py',
                    '--out', tmp_path / 'digits', '--train', '1', '--cls-copies', '1'],
                   check=True, capture_output=True)
    data = tmp_path / 'digits' / 'detection'
    annotations = data / 'annotations' / 'instances_val.json'
    metrics = [CocoMetric(ann_file=str(annotations), metric=['bbox', 'segm'], backend=backend)
               for backend in ('pycocotools', 'hotcoco', 'hotcoco')]
    run = runner('onnx', str(file))
    largest = dict(scores=0, boxes=0, masks=0)
    images = json.loads(annotations.read_text())['images']
    for info in images:
        image = mmcv.imread(data / 'val' / info['file_name'])
        h, w = image.shape[:2]
        assert max(h, w) <= 128  # not resized
        rgb = torch.from_numpy(np.ascontiguousarray(image[..., ::-1])).permute(2, 0, 1)
        want = predict(model, rgb, (h, w)).pred_instances
        canvas = torch.zeros(1, 3, 128, 128)
        canvas[0, :, :h, :w] = rgb
        boxes, scores, labels, masks = map(torch.as_tensor, run(canvas, torch.tensor([h, w])))
        assert labels.tolist() == want.labels.tolist()
        pasted = _do_paste_mask(masks[:, None], boxes, h, w, skip_empty=False)[0] >= .5
        for key, got, wanted in (('scores', scores, want.scores), ('boxes', boxes, want.bboxes),
                                 ('masks', pasted.float().mean((1, 2)),
                                  want.masks.float().mean((1, 2)))):
            largest[key] = max(largest[key], (got - wanted).abs().max().item())
        by_file = dict(bboxes=boxes, scores=scores, labels=labels, masks=pasted)
        for metric, found in zip(metrics, (want, want, by_file), strict=True):
            found = {key: found[key] for key in by_file}
            metric.process({}, [dict(img_id=info['id'], ori_shape=(h, w), pred_instances=found)])
    values = []
    for metric in metrics:
        metric.dataset_meta = dict(classes=cfg.metainfo.classes)
        values.append(metric.evaluate(len(images)))
    assert len(images) == 160 and values[0]['coco/segm_mAP'] > .8
    assert values[1] == values[0] and values[2] == pytest.approx(values[0], abs=.001)
    for task in ('bbox', 'segm'):
        slow, fast = (metric.runs[task].stats for metric in metrics[:2])
        np.testing.assert_allclose(fast, slow, rtol=0, atol=1e-9)
    assert largest['scores'] < 1e-4 and largest['boxes'] < 1e-2


def test_script_of_the_page(root_dir, digits, shipped, tmp_path):
    _, model, file = shipped
    page = (root_dir / 'docs' / 'deploy.md').read_text()
    script, = re.findall(r'```python\n(""".*?detect.py.*?)```', page, re.DOTALL)
    assert len(script.splitlines()) <= 45
    (tmp_path / 'detect.py').write_text(script)
    (tmp_path / 'without').mkdir()
    for name in ('torch', 'torchvision', 'mmext', 'mmdet', 'mmcv', 'mmengine', 'cv2'):
        (tmp_path / 'without' / f'{name}.py').write_text('raise ImportError("not here")')
    images = digits / 'detection' / 'val'
    subprocess.run([sys.executable, tmp_path / 'detect.py', file, images, tmp_path / 'found'],
                   check=True, env={**os.environ, 'PYTHONPATH': str(tmp_path / 'without')})
    import mmcv
    for path in sorted(images.iterdir()):
        image = mmcv.imread(path)
        assert max(image.shape) <= 128  # not resized, so that nothing else differs
        want = predict(model, torch.from_numpy(image).permute(2, 0, 1).flip(0),
                       image.shape[:2]).pred_instances
        got = np.load(tmp_path / 'found' / f'{path.stem}.npz')
        order = want.scores.argsort(descending=True)
        want = want[order]
        assert len(want) == len(got['scores']) > 0
        np.testing.assert_array_equal(got['labels'], want.labels)
        np.testing.assert_allclose(got['scores'], want.scores, atol=1e-4)
        np.testing.assert_allclose(got['boxes'], want.bboxes, atol=1e-2)
        assert (got['masks'] != want.masks.numpy()).mean() < 1e-3


def test_torch_export_equals_the_model(load_tool, tmp_path, capsys):
    """With what one must know beside it."""
    config, weights = trained_model('digits')
    file = str(tmp_path / 'detector.pt2')
    assert load_tool('model_converters/export').main(
        [config, weights, '--detector', '--format', 'torch_export', '--out', file]
    ) == 0, capsys.readouterr().out
    beside = {'facts.json': ''}
    torch.export.load(file, extra_files=beside)
    facts = json.loads(beside['facts.json'])
    assert facts['classes'] == list('0123456789') and facts['channel_order'] == 'RGB'
    assert facts['outputs'] == ['boxes', 'scores', 'labels', 'masks']
    assert (facts['mean'], facts['std'], facts['mask_threshold']) == ([0] * 3, [1] * 3, .5)
