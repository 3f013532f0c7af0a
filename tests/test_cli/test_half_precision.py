"""--amp: every part of the detector runs in bf16 and fp16 on CPU and its results stay close."""

import copy

import pytest
import torch
from mmengine.config import Config

import mmext.registry  # noqa: F401  (first: it prepares mmcv's ops for mmdet)
from mmext.cli.half_precision import use_half_precision
from mmext.cli.launch import build_model


@pytest.mark.parametrize('name', ['bf16', 'fp16'])
def test_detector(root_dir, name):
    """RPN, NMS, RoIAlign, heads and mask pasting; fields are full precision afterwards."""
    from mmdet.structures import DetDataSample
    cfg = Config.fromfile(root_dir / 'configs' / 'quickstart' / 'digits_mask_rcnn.py')
    cfg.model.backbone.init_cfg = None
    cfg.model.test_cfg.rcnn.score_thr = 0
    torch.manual_seed(0)
    model = build_model(cfg)
    side = cfg.model.backbone.get('img_size', 128)
    side = side if isinstance(side, int) else side[0]
    sample = DetDataSample(metainfo=dict(
        img_id=1, img_shape=(side, side), ori_shape=(side, side), scale_factor=(1., 1.)))
    data = dict(inputs=[torch.randint(0, 255, (3, side, side), dtype=torch.uint8)],
                data_samples=[sample])
    seen = set()
    for part in (model.neck, model.rpn_head, model.roi_head.bbox_head.fc_cls,
                 model.roi_head.mask_head.conv_logits):
        part.register_forward_hook(lambda module, args, out: seen.add(
            next(x for x in torch.utils._pytree.tree_leaves(out)).dtype))
    with torch.no_grad():
        full = model.test_step(copy.deepcopy(data))[0].pred_instances
        seen.clear()
        use_half_precision(model, name)
        decoded = set()  # what boxes and masks are made of
        for head in (model.rpn_head, model.roi_head.bbox_head, model.roi_head.mask_head):
            head.register_forward_hook(lambda module, args, out: decoded.update(
                x.dtype for x in torch.utils._pytree.tree_leaves(out)))
        half = model.test_step(copy.deepcopy(data))[0].pred_instances
    assert decoded == {torch.float32}
    assert seen == {dict(bf16=torch.bfloat16, fp16=torch.float16)[name]}
    assert half.scores.dtype == half.bboxes.dtype == torch.float32
    assert len(full) == len(half) > 0 and half.masks.shape[1:] == (side, side)
    # scores of random weights, all about 1 / classes
    torch.testing.assert_close(half.scores, full.scores, rtol=.05, atol=.01)
