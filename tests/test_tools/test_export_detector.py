"""An exported detector finds what mmdet's predict finds, and the script of docs/deploy.md uses it
where neither torch nor mmext can be imported."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from detection_helpers import MASKED, PAIR, build, small_config
from mmengine.config import Config
from mmengine.registry import init_default_scope

from mmext.models.detection.exportable import ExportableDetector, nms_by_group
from mmext.registry import MODELS


def make(name):
    cfg = small_config(name)
    if name == MASKED:  # its own canvas would be smaller than that of the file
        cfg.model.data_preprocessor.val_pad_size_divisor = 128
    model = build(cfg).eval().requires_grad_(False)
    return model, ExportableDetector(model, [str(i) for i in range(80)]).eval()


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
        ExportableDetector(build(small_config(name)), ['a'])
    with pytest.raises(ValueError, match='has 1 classes, its roi_head 80'):
        ExportableDetector(build(small_config(PAIR)), ['a'])


def test_script_of_the_page(root_dir, digits, load_tool, tmp_path, capsys):
    for name in ('onnx', 'onnxscript', 'onnxruntime'):
        pytest.importorskip(name)
    cfg = Config.fromfile(root_dir / 'configs' / 'quickstart' / 'digits_mask_rcnn.py')
    cfg.model.backbone.init_cfg = None
    # random weights are sure of nothing
    cfg.model.test_cfg.rcnn.update(score_thr=.09, max_per_img=8)
    cfg.dump(tmp_path / 'config.py')
    init_default_scope('mmdet')
    torch.manual_seed(0)
    model = MODELS.build(cfg.model).eval().requires_grad_(False)
    torch.save({'state_dict': model.state_dict()}, tmp_path / 'weights.pth')
    file = tmp_path / 'detector.onnx'
    assert load_tool('model_converters/export').main(
        [str(tmp_path / 'config.py'), str(tmp_path / 'weights.pth'), '--detector', '--shape',
         '128', '--out', str(file)]) == 0, capsys.readouterr().out
    page = (root_dir / 'docs' / 'deploy.md').read_text()
    script, = re.findall(r'```python\n(""".*?detect.py.*?)```', page, re.DOTALL)
    assert len(script.splitlines()) <= 50
    (tmp_path / 'detect.py').write_text(script)
    for name in ('torch', 'mmext'):
        (tmp_path / 'without').mkdir(exist_ok=True)
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
        assert len(want) == len(got['scores']) > 0
        np.testing.assert_allclose(got['scores'], want.scores, atol=1e-4)
        np.testing.assert_allclose(got['boxes'], want.bboxes, atol=1e-2)
        assert (got['masks'] != want.masks.numpy()).mean() < 1e-3
