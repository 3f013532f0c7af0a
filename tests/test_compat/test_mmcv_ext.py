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


@pytest.mark.parametrize('sampling', [1, 3])
@pytest.mark.parametrize('aligned', [True, False])
def test_gradient_of_many_regions_equals_torchvision(sampling, aligned):
    """Some outside of the map, some smaller than a cell, some on its borders."""
    generator = torch.Generator().manual_seed(1)
    corner = torch.rand(300, 2, generator=generator) * 140 - 30
    size = torch.rand(300, 2, generator=generator) ** 3 * 90
    corner[:20], size[:20] = corner[:20].round(), size[:20].round()
    rois = torch.cat([torch.randint(0, 3, (300, 1), generator=generator), corner, corner + size], 1)
    x = torch.randn(3, 5, 16, 20, generator=generator)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    out = mmcv_ops.RoIAlign((7, 5), .25, sampling, aligned=aligned)(a, rois)
    expected = torchvision.ops.roi_align(b, rois, (7, 5), .25, sampling, aligned)
    weight = torch.randn(expected.shape, generator=generator)
    (out * weight).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)


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


def focal_inputs(n=7, classes=4):
    """Logits, classes with background (= ``classes``), class weights; all fp64."""
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(n, classes, generator=g, dtype=torch.double) * 3
    target = torch.arange(n) % (classes + 1)
    return logits, target, torch.rand(classes, generator=g, dtype=torch.double) + .5


class SigmoidFocal(torch.autograd.Function):
    """The two stand-ins as one op, called the way mmcv's wrapper calls the extension."""

    @staticmethod
    def forward(ctx, x, target, weight, gamma, alpha):
        ctx.save_for_backward(x, target, weight)
        ctx.options = dict(gamma=gamma, alpha=alpha)
        out = torch.full_like(x, 7)
        mmcv_ext.sigmoid_focal_loss_forward(x, target, weight, out, **ctx.options)
        return out

    @staticmethod
    def backward(ctx, grad_output):
        grad = torch.full_like(grad_output, 7)
        mmcv_ext.sigmoid_focal_loss_backward(*ctx.saved_tensors, grad, **ctx.options)
        return grad * grad_output, None, None, None, None


@pytest.mark.parametrize('gamma, alpha', [(2., .25), (0., .5), (1.5, .9)])
@pytest.mark.parametrize('weighted', [False, True])
def test_sigmoid_focal_loss(gamma, alpha, weighted):
    """Against mmdet's pure-torch form and, for the gradient, finite differences."""
    from mmdet.models.losses.focal_loss import py_sigmoid_focal_loss
    logits, target, weight = focal_inputs()
    weight = weight if weighted else weight[:0]
    out = SigmoidFocal.apply(logits, target, weight, gamma, alpha)
    one_hot = torch.nn.functional.one_hot(target, 5)[:, :4]
    want = py_sigmoid_focal_loss(logits, one_hot, gamma=gamma, alpha=alpha, reduction='none')
    if weighted:
        want = want * torch.tensor([*weight, 1.])[target][:, None]
    torch.testing.assert_close(out, want, rtol=1e-12, atol=1e-12)
    logits.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: SigmoidFocal.apply(x, target, weight, gamma, alpha), logits)


@pytest.mark.parametrize('gamma, alpha', [(2., .25), (0., .5), (1.5, .9)])
@pytest.mark.parametrize('weighted', [False, True])
def test_softmax_focal_loss(gamma, alpha, weighted):
    """Both stand-ins against the closed formula on log-softmax and its autograd."""
    logits, target, weight = focal_inputs()
    target = target - 1  # -1 is ignored
    weight = weight if weighted else weight[:0]
    logits.requires_grad_()
    log_p = logits.log_softmax(1).gather(1, target.clamp(min=0)[:, None])[:, 0]
    want = -alpha * (1 - log_p.exp())**gamma * log_p * (target >= 0)
    if weighted:
        want = want * weight[target.clamp(min=0)]
    p = logits.detach().softmax(1)
    out, buff, grad = p.new_full((len(p),), 7), p.new_full((len(p),), 7), torch.full_like(p, 7)
    options = dict(gamma=gamma, alpha=alpha)
    mmcv_ext.softmax_focal_loss_forward(p, target, weight, out, **options)
    torch.testing.assert_close(out, want.detach(), rtol=1e-12, atol=1e-12)
    mmcv_ext.softmax_focal_loss_backward(p, target, weight, buff, grad, **options)
    torch.testing.assert_close(
        grad, torch.autograd.grad(want.sum(), logits)[0], rtol=1e-10, atol=1e-12)


def test_softmax_focal_loss_of_certain_predictions_is_finite():
    p = torch.tensor([[1., 0.], [0., 1.]])
    out, buff, grad = p.new_zeros(2), p.new_zeros(2), torch.zeros_like(p)
    for call, more in ((mmcv_ext.softmax_focal_loss_forward, (out,)),
                       (mmcv_ext.softmax_focal_loss_backward, (buff, grad))):
        call(p, torch.tensor([0, 0]), p.new_zeros(0), *more, gamma=2., alpha=.25)
    assert out[0] == 0 < out[1] < 100 and grad.isfinite().all()


@stand_in_only
@pytest.mark.parametrize('name', ['sigmoid', 'softmax'])
def test_focal_losses_through_mmcv(name):
    """mmcv's own function finds the stand-ins, and a step against the gradient lowers the loss."""
    loss = getattr(mmcv_ops, f'{name}_focal_loss')
    logits, target, _ = focal_inputs()
    target = target.clamp(max=3)
    logits.requires_grad_()
    before = loss(logits, target, 2., .25, None, 'mean')
    before.backward()
    assert loss(logits - .1 * logits.grad, target, 2., .25, None, 'mean') < before


def deformable_inputs(dtype=torch.double):
    """Two levels, 6 queries, 2 heads of width 3, 2 points; some points lie outside."""
    g = torch.Generator().manual_seed(0)
    shapes = torch.tensor([[4, 5], [2, 3]])
    start = torch.tensor([0, 20])
    value = torch.randn(2, 26, 2, 3, generator=g, dtype=torch.double)
    locations = torch.rand(2, 6, 2, 2, 2, 2, generator=g, dtype=torch.double) * 1.4 - .2
    weights = torch.rand(2, 6, 2, 2, 2, generator=g, dtype=torch.double)
    return value.to(dtype), shapes, start, locations.to(dtype), weights.to(dtype)


def sampled_by_definition(value, shapes, start, locations, weights):
    """Deformable attention, one bilinear sample at a time; outside the level is zero."""
    batch, queries, heads = locations.shape[:3]
    out = value.new_zeros(batch, queries, heads, value.shape[-1])
    index = torch.cartesian_prod(*map(torch.arange, locations.shape[:-1]))
    for b, q, m, level, k in index.tolist():
        height, width = shapes[level].tolist()
        x = locations[b, q, m, level, k, 0] * width - .5
        y = locations[b, q, m, level, k, 1] * height - .5
        x0, y0 = int(x.floor()), int(y.floor())
        for yi, xi in ((y0, x0), (y0, x0 + 1), (y0 + 1, x0), (y0 + 1, x0 + 1)):
            if 0 <= yi < height and 0 <= xi < width:
                share = (1 - (x - xi).abs()) * (1 - (y - yi).abs())
                out[b, q, m] += weights[b, q, m, level, k] * share * value[
                    b, start[level] + yi * width + xi, m]
    return out.flatten(2)


class DeformableAttention(torch.autograd.Function):

    @staticmethod
    def forward(ctx, value, shapes, start, locations, weights):
        ctx.save_for_backward(value, shapes, start, locations, weights)
        return mmcv_ext.ms_deform_attn_forward(
            value, shapes, start, locations, weights, im2col_step=64)

    @staticmethod
    def backward(ctx, grad_output):
        value, shapes, start, locations, weights = ctx.saved_tensors
        grads = [torch.zeros_like(x) for x in (value, locations, weights)]
        mmcv_ext.ms_deform_attn_backward(
            value, shapes, start, locations, weights, grad_output, *grads, im2col_step=64)
        return grads[0], None, None, grads[1], grads[2]


def test_deformable_attention():
    """Against the definition; gradients against finite differences."""
    value, shapes, start, locations, weights = deformable_inputs()
    out = DeformableAttention.apply(value, shapes, start, locations, weights)
    torch.testing.assert_close(
        out, sampled_by_definition(value, shapes, start, locations, weights))
    inputs = [x.requires_grad_() for x in (value, locations, weights)]
    assert torch.autograd.gradcheck(
        lambda v, x, w: DeformableAttention.apply(v, shapes, start, x, w), inputs)


@stand_in_only
def test_deformable_attention_through_mmcv():
    """The function that mmcv's module calls on CUDA equals the form that it calls on CPU."""
    from mmcv.ops.multi_scale_deform_attn import (
        MultiScaleDeformableAttnFunction,
        multi_scale_deformable_attn_pytorch,
    )
    value, shapes, start, locations, weights = deformable_inputs()
    inputs = [x.requires_grad_() for x in (value, locations, weights)]
    out = MultiScaleDeformableAttnFunction.apply(value, shapes, start, locations, weights, 64)
    want = multi_scale_deformable_attn_pytorch(value, shapes, locations, weights)
    torch.testing.assert_close(out, want)
    seed = torch.randn_like(out)
    for got, expected in zip(torch.autograd.grad(out, inputs, seed),
                             torch.autograd.grad(want, inputs, seed), strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_other_stand_ins_in_reduced_precision(dtype):
    """Computed in fp32, returned in the type that came."""
    logits, target, weight = focal_inputs()
    out = torch.zeros_like(logits, dtype=dtype)
    mmcv_ext.sigmoid_focal_loss_forward(logits.to(dtype), target, weight[:0].to(dtype), out,
                                        gamma=2., alpha=.25)
    want = torch.zeros(logits.shape)
    mmcv_ext.sigmoid_focal_loss_forward(logits.to(dtype).float(), target, weight[:0], want,
                                        gamma=2., alpha=.25)
    assert torch.equal(out, want.to(dtype))
    value, shapes, start, locations, weights = deformable_inputs(dtype)
    out = mmcv_ext.ms_deform_attn_forward(value, shapes, start, locations, weights, 64)
    want = mmcv_ext.ms_deform_attn_forward(
        value.float(), shapes, start, locations.float(), weights.float(), 64)
    assert out.dtype == dtype and torch.equal(out, want.to(dtype))
    grads = [torch.zeros_like(x) for x in (value, locations, weights)]
    mmcv_ext.ms_deform_attn_backward(
        value, shapes, start, locations, weights, torch.ones_like(out), *grads, 64)
    assert all(grad.dtype == dtype and grad.isfinite().all() and grad.any() for grad in grads)


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
    for name in (*(op.__name__ for op in mmcv_ext.STAND_INS), 'softnms'):
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
