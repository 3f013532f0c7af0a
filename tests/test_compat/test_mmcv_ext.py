"""The stand-ins for mmcv's compiled ops against torchvision and plain references."""

import pytest
import torch
import torchvision

import mmext.registry  # noqa: F401
from mmext.compat import mmcv_ext

mmcv_ops = pytest.importorskip('mmcv.ops')
stand_in_only = pytest.mark.skipif(
    mmcv_ext.has_compiled_ops(), reason='mmcv has its compiled ops: the stand-ins are not in use')


def boxes(n, seed=0, size=100.):
    g = torch.Generator().manual_seed(seed)
    xy = torch.rand(n, 2, generator=g) * size
    return torch.cat([xy, xy + 1 + torch.rand(n, 2, generator=g) * size / 2], 1), torch.rand(
        n, generator=g)


def greedy_nms(dets, scores, threshold, offset):
    """Textbook NMS with the width convention x2 - x1 + offset."""
    order, keep = scores.argsort(descending=True).tolist(), []
    area = (dets[:, 2] - dets[:, 0] + offset) * (dets[:, 3] - dets[:, 1] + offset)
    while order:
        i = order.pop(0)
        keep.append(i)
        rest = []
        for j in order:
            lt = torch.maximum(dets[i, :2], dets[j, :2])
            rb = torch.minimum(dets[i, 2:], dets[j, 2:])
            inter = (rb - lt + offset).clamp(min=0).prod()
            if inter / (area[i] + area[j] - inter) <= threshold:
                rest.append(j)
        order = rest
    return torch.tensor(keep)


@pytest.mark.parametrize('offset', [0, 1])
@pytest.mark.parametrize('threshold', [.3, .5, .7])
def test_nms_is_greedy_nms(threshold, offset):
    dets, scores = boxes(60)
    kept, index = mmcv_ops.nms(dets, scores, threshold, offset=offset)
    assert torch.equal(index, greedy_nms(dets, scores, threshold, offset))
    assert torch.equal(kept, torch.cat([dets[index], scores[index, None]], 1))


def test_batched_nms_keeps_classes_apart():
    dets, scores = boxes(80)
    classes = torch.arange(80) % 3
    _, index = mmcv_ops.batched_nms(dets, scores, classes, dict(type='nms', iou_threshold=.4))
    expected = torchvision.ops.batched_nms(dets, scores, classes, .4)
    assert torch.equal(index, expected)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_nms_in_reduced_precision(dtype):
    dets, scores = boxes(40)
    dets = dets.to(dtype)
    index = mmcv_ops.nms(dets, scores.to(dtype), .5)[1]
    assert torch.equal(index, torchvision.ops.nms(dets.float(), scores.to(dtype).float(), .5))


def test_no_boxes():
    kept, index = mmcv_ops.nms(torch.zeros(0, 4), torch.zeros(0), .5)
    assert kept.shape == (0, 5) and index.shape == (0, ) and index.dtype == torch.long


def bilinear_roi_align(x, roi, size, scale, sampling):
    """RoIAlign (aligned) of one box by the definition: average of bilinear samples."""
    b, box = int(roi[0]), roi[1:] * scale - .5
    h, w = x.shape[-2:]
    bin_w, bin_h = (box[2] - box[0]) / size, (box[3] - box[1]) / size
    out = torch.zeros(x.size(1), size, size, dtype=x.dtype)
    for i in range(size):
        for j in range(size):
            for si in range(sampling):
                for sj in range(sampling):
                    y = box[1] + bin_h * (i + (si + .5) / sampling)
                    xx = box[0] + bin_w * (j + (sj + .5) / sampling)
                    if y < -1 or y > h or xx < -1 or xx > w:
                        continue
                    y, xx = y.clamp(0, h - 1), xx.clamp(0, w - 1)
                    y0, x0 = int(y), int(xx)
                    y1, x1 = min(y0 + 1, h - 1), min(x0 + 1, w - 1)
                    fy, fx = y - y0, xx - x0
                    out[:, i, j] += ((1 - fy) * (1 - fx) * x[b, :, y0, x0] +
                                     (1 - fy) * fx * x[b, :, y0, x1] +
                                     fy * (1 - fx) * x[b, :, y1, x0] + fy * fx * x[b, :, y1, x1])
    return out / sampling**2


def features_and_rois(channels=4):
    torch.manual_seed(0)
    x = torch.randn(2, channels, 16, 20)
    rois = torch.tensor([[0, 3., 5., 60., 40.], [1, -10., 2., 30., 90.], [1, 20., 20., 21., 22.]])
    return x, rois


def test_roi_align_is_the_definition():
    x, rois = features_and_rois()
    out = mmcv_ops.RoIAlign(3, .25, 2)(x.double(), rois.double())
    for k, roi in enumerate(rois):
        expected = bilinear_roi_align(x.double(), roi.double(), 3, .25, 2)
        torch.testing.assert_close(out[k], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('sampling', [0, 1, 2])
@pytest.mark.parametrize('aligned', [True, False])
def test_roi_align_and_gradient_equal_torchvision(sampling, aligned):
    x, rois = features_and_rois()
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    out = mmcv_ops.RoIAlign(7, .25, sampling, aligned=aligned)(a, rois)
    expected = torchvision.ops.roi_align(b, rois, 7, .25, sampling, aligned)
    weight = torch.randn_like(expected)
    (out * weight).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize('layout', ['channels_last', 'permuted', 'sliced'])
def test_roi_align_takes_any_memory_layout(layout):
    x, rois = features_and_rois()
    strange = {
        'channels_last': lambda t: t.contiguous(memory_format=torch.channels_last),
        'permuted': lambda t: t.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2),
        'sliced': lambda t: torch.cat([t, t], 1)[:, :t.size(1)],
    }[layout](x)
    assert not strange.is_contiguous() and torch.equal(strange, x)
    op = mmcv_ops.RoIAlign(7, .25, 2)
    a, b = x.clone().requires_grad_(), strange.clone(memory_format=torch.preserve_format)
    b.requires_grad_()
    torch.testing.assert_close(op(a, rois), op(b, rois))
    op(a, rois).square().sum().backward()
    op(b, rois).square().sum().backward()
    torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize('norm', ['mmext.LN2d', 'mmpretrain.LN2d', 'BN'])
@pytest.mark.parametrize('channels_last', [False, True])
def test_roi_align_is_right_on_what_the_neck_hands_on(norm, channels_last):
    """Whichever kernels mmcv has: norms that permute and strange layouts end at the neck."""
    from mmext.models import SimpleFeaturePyramid
    torch.manual_seed(0)
    neck = SimpleFeaturePyramid(8, 4, norm_cfg=dict(type=norm)).eval()
    x = torch.randn(2, 8, 16, 20)
    if channels_last:
        neck = neck.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    _, rois = features_and_rois()
    with torch.no_grad():
        levels = neck(x)
    for level, stride in zip(levels, neck.strides, strict=True):
        assert level.is_contiguous()
        plain = torch.empty(level.shape).copy_(level).requires_grad_()
        level.requires_grad_()
        out = mmcv_ops.RoIAlign(7, 1 / stride, 2)(level, rois)
        want = torchvision.ops.roi_align(plain, rois, 7, 1 / stride, 2, True)
        torch.testing.assert_close(out, want)
        torch.testing.assert_close(torch.autograd.grad(out.square().sum(), level),
                                   torch.autograd.grad(want.square().sum(), plain))


def test_no_rois():
    x, _ = features_and_rois()
    x.requires_grad_()
    out = mmcv_ops.RoIAlign(7, .25, 2)(x, torch.zeros(0, 5))
    assert out.shape == (0, 4, 7, 7)
    out.sum().backward()
    assert torch.equal(x.grad, torch.zeros_like(x))


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
@stand_in_only
def test_roi_align_in_reduced_precision(dtype):
    x, rois = features_and_rois()
    x = x.to(dtype).requires_grad_()
    out = mmcv_ops.RoIAlign(7, .25, 2)(x, rois.to(dtype))
    assert out.dtype == dtype
    expected = torchvision.ops.roi_align(x.float(), rois.to(dtype).float(), 7, .25, 2, True)
    torch.testing.assert_close(out, expected.to(dtype))
    out.sum().backward()
    assert x.grad.dtype == dtype and x.grad.isfinite().all()


@stand_in_only
def test_other_ops_say_what_is_missing():
    with pytest.raises(mmcv_ext.MissingOpError, match=r"'softnms'.*Install a build"):
        mmcv_ops.soft_nms(*boxes(5))
    with pytest.raises(mmcv_ext.MissingOpError, match='pool_mode'):
        x, rois = features_and_rois()
        mmcv_ops.RoIAlign(7, .25, pool_mode='max')(x, rois)


def test_a_compiled_extension_is_preferred(monkeypatch):
    """Except for what its kernels refuse or misread: bf16, fp16 and strange layouts on CPU."""
    import sys
    import types
    calls = []
    real = types.ModuleType('mmcv._ext')
    for name in ('nms', 'roi_align_forward', 'roi_align_backward', 'softnms'):
        setattr(real, name, lambda *args, name=name, **kwargs: calls.append(name))
    soft_nms = real.softnms
    monkeypatch.setitem(sys.modules, 'mmcv._ext', real)
    mmcv_ext.install()
    mmcv_ext.install()
    assert sys.modules['mmcv._ext'] is real and mmcv_ext.has_compiled_ops()
    assert real.softnms is soft_nms
    dets, scores = boxes(9)
    assert real.nms(dets, scores, iou_threshold=.5, offset=0) is None and calls == ['nms']
    x, rois = features_and_rois()
    out = x.new_zeros(len(rois), x.shape[1], 7, 7)
    options = (out.new_zeros(0), out.new_zeros(0), 7, 7, .25, 2, 1, True)
    real.roi_align_forward(x, rois, out, *options)
    assert calls == ['nms', 'roi_align_forward'] and not out.any()
    strange = x.contiguous(memory_format=torch.channels_last)
    real.roi_align_forward(strange, rois, out, *options)
    torch.testing.assert_close(out, torchvision.ops.roi_align(x, rois, 7, .25, 2, True))
    for dtype in (torch.float16, torch.bfloat16):
        kept = real.nms(dets.to(dtype), scores.to(dtype), .5, offset=0)
        assert torch.equal(kept, torchvision.ops.nms(
            dets.to(dtype).float(), scores.to(dtype).float(), .5))
    assert calls.count('roi_align_forward') == 1
