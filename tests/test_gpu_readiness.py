"""What a GPU would do with the networks, without one: see ``pretended_cuda``.

Devices of all tensors, places where the host waits for the device, and which kernels of
``scaled_dot_product_attention`` may be used. The numbers are those of docs/gpu.md.
"""

import copy
import re
import typing
from pathlib import Path

import mmengine.structures.instance_data
import pytest
import torch
from detection_helpers import build, fake_batch, small_config
from mmengine.config import Config
from mmengine.optim import OptimWrapper
from mmengine.registry import init_default_scope
from mmengine.structures import PixelData
from pretended_cuda import Pretended, PretendedCuda, RecordAttention
from timm.models.vision_transformer_sam import get_rel_pos
from torch.testing import assert_close

from mmext.layers.relative_attention import by_distance
from mmext.models import DMST, BiasPrunedViT, SimpleFeaturePyramid
from mmext.models.backbones.timm_vit import TimmViT

ROOT = Path(__file__).resolve().parents[1]
ARCH = dict(embed_dim=64, depth=2, num_heads=2)
TIMM = dict(embed_dim=64, depth=2, num_heads=2)


def vit(**options):
    return lambda: BiasPrunedViT(ARCH, img_size=64, patch_size=8, out_type='featmap',
                                 **{'with_cls_token': False, **options})


def dmst(attn, out_type='featmap'):
    return lambda: DMST(ARCH, patch_size=8, attn=attn, out_type=out_type)


def timm_vit(name, img_size=64, keep_ratio=(.9, .1), **model_args):
    return lambda: TimmViT(name, img_size=img_size, keep_ratio=keep_ratio,
                           model_args={**TIMM, **model_args})


PRUNED = dict(keep_ratio=(.9, .1))
# name -> how it is made, and where the host waits in one forward pass in evaluation
BACKBONES = {
    'plain': (vit(key_bias=False), {}),
    'bias, dense': (vit(), {}),
    'bias, pruned': (vit(**PRUNED), {}),
    'bias, pruned, gathered in training': (vit(**PRUNED, train_mode='gather'), {}),
    'bias, pruned, masked in evaluation': (vit(**PRUNED, val_mode='mask'), {}),
    'bias, class token': (vit(**PRUNED, with_cls_token=True), {}),
    'bias, valid mask': (vit(**PRUNED, use_valid_mask=True), {}),
    'bias, threshold': (vit(tau=.7), {'mmext/ops/column_selection.py': 2}),
    'bias, threshold, masked': (vit(tau=.7, val_mode='mask'), {}),
    'bias, query-key-free': (vit(num_qk_free=1), {}),
    'bias, windows': (vit(**PRUNED, window_size=3, rel_pos=True), {}),
    'bias, merging': (vit(**PRUNED, tome_r=8), {}),
    'DMSA': (dmst('dmsa'), {}),
    'DMSA, class token': (dmst('dmsa', 'cls_token'), {}),
    'TSSA': (dmst('tssa'), {}),
    'MSSA': (dmst('mssa'), {}),
    'gated': (dmst('gated'), {}),
    'DINOv2': (timm_vit('vit_small_patch14_reg4_dinov2', 56), {}),
    'DINOv3': (timm_vit('vit_small_patch16_dinov3'), {'timm/layers/pos_embed_sincos.py': 1}),
    'EVA-02': (timm_vit('eva02_base_patch14_224', 56), {}),
    'SAM': (timm_vit('samvit_base_patch16', global_attn_indexes=(1,)),
            {'timm/models/vision_transformer_sam.py': 2}),
}


def by_file(waits):
    found = {}
    for (_, _, place), count in waits.items():
        name = place.rsplit(':')[0]
        found[name] = found.get(name, 0) + count
    return found


def images(channels=3):
    x = torch.rand(2, channels, 64, 56)
    if channels == 4:
        x[:, 3], x[1, 3, :, 40:] = 1, 0
    return x


# --------------------------------------------------------------------------- the helper itself
def test_pretended_tensors_compute_and_differentiate():
    torch.manual_seed(0)
    layer = torch.nn.Sequential(torch.nn.Linear(5, 5), torch.nn.GELU(), torch.nn.LayerNorm(5))
    x = torch.rand(3, 5)
    layer(x).square().sum().backward()
    twin = copy.deepcopy(layer)
    with PretendedCuda(backward=True) as mode:
        twin.to('cuda')
        twin.zero_grad()
        out = twin(x.to('cuda'))
        assert out.device.type == 'cuda' and out.is_cuda
        with mode.counting() as waits:
            out.square().sum().backward()
        assert not waits
        for a, b in zip(layer.parameters(), twin.parameters(), strict=True):
            assert_close(b.grad.cpu(), a.grad)


def test_pretended_tensors_refuse_two_devices():
    with PretendedCuda():
        x = torch.rand(3, 3, device='cuda')
        for wrong in (lambda: x + torch.rand(3), lambda: torch.cat([x, torch.rand(1, 3)]),
                      lambda: torch.nn.functional.linear(x, torch.rand(2, 3))):
            with pytest.raises(RuntimeError, match='tensors on cuda:0 and on the CPU'):
                wrong()
        assert (x + torch.tensor(1.)).device.type == 'cuda'  # numbers go everywhere


@pytest.mark.parametrize('code, kinds', [
    ('x.sum().item()', ['read']), ('int(x.argmax())', ['read']), ('x.cpu()', ['to host']),
    ('x[x > 0]', ['read']), ('x.nonzero()', ['read']), ('bool((x > 0).all())', ['read']),
    ('torch.tensor([1.]).to(x.device)', ['to device']), ('x.new_tensor([1, 2])', ['to device']),
    ('torch.tensor([1.], device=x.device)', ['to device']), ('x[[0, 1]]', ['to device']),
    ('x.masked_fill_(x > 0, 0)', []), ('x.topk(2)', []), ('x[:, 1:] = 3', []),
    ('torch.where(x > 0, x, 0)', []), ('torch.zeros(3, device=x.device)', []),
    ('x.gather(1, x.argsort(1))', [])])
def test_what_waits_is_counted(code, kinds):
    with PretendedCuda() as mode:
        x = torch.rand(3, 3, device='cuda')
        with mode.counting() as waits:
            exec(code, {'torch': torch, 'x': x})
    assert [kind for kind, _, _ in waits] == kinds


# ------------------------------------------------------------------------------ backbones, neck
@pytest.mark.parametrize('channels', [3, 4])
@pytest.mark.parametrize('name', BACKBONES)
def test_backbones(name, channels):
    """Forward and backward on one device, values of the CPU, no other waits than known ones."""
    make, known = BACKBONES[name]
    torch.manual_seed(0)
    model = make()
    x = images(channels)
    expected = {}
    for training in (False, True):
        model.train(training).zero_grad()
        out = model(x)
        sum(o.square().mean() for o in out).backward()
        expected[training] = [o.detach() for o in out], {
            n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    torch.manual_seed(0)
    model = make()
    with PretendedCuda(backward=True) as mode:
        model.to('cuda')
        on_device = x.to('cuda')
        for training in (False, True):
            model.train(training).zero_grad()
            with mode.counting() as waits:
                out = model(on_device)
            if training:  # thresholds mask in training
                assert 'mmext/ops/column_selection.py' not in by_file(waits)
            else:
                assert by_file(waits) == known
            sum(o.square().mean() for o in out).backward()
            maps, gradients = expected[training]
            assert_close([o.detach().cpu() for o in out], maps, atol=1e-4, rtol=1e-4)
            for parameter, wanted in gradients.items():
                grad = model.get_parameter(parameter).grad
                assert isinstance(grad, Pretended)
                assert_close(grad.cpu(), wanted, atol=1e-4, rtol=1e-3)


def test_neck():
    torch.manual_seed(0)
    neck = SimpleFeaturePyramid(in_channels=16, out_channels=16, in_stride=16, masked=True)
    x = torch.rand(2, 16, 8, 8)
    expected = neck((x,))
    with PretendedCuda(backward=True) as mode:
        neck.to('cuda')
        given = x.to('cuda')
        with mode.counting() as waits:
            out = neck((given,))
            sum(o.square().mean() for o in out).backward()
        assert not waits
        assert_close([o.detach().cpu() for o in out], [o.detach() for o in expected])


@pytest.mark.parametrize('size, stored', [(4, 4), (6, 4), (3, 5), (1, 1)])
def test_relative_positions_are_those_of_timm(size, stored):
    table = torch.rand(2 * stored - 1, 8)
    assert_close(by_distance(table, size), get_rel_pos(size, size, table))


# ---------------------------------------------------------------------------------- detectors
def quickstart(name):
    init_default_scope('mmdet')
    cfg = Config.fromfile(ROOT / f'configs/quickstart/{name}.py')
    cfg.model.backbone.init_cfg = None
    return cfg


DETECTORS = {
    'Mask R-CNN': 'mask-rcnn_deit-s-bias-0.9-0.1_sfp_lsj-100e_coco.py',
    'Mask R-CNN, valid mask': 'mask-rcnn_deit-s-bias-0.9-0.1-masked_sfp_lsj-100e_coco.py',
    'Mask R-CNN, windows': 'mask-rcnn_deit-s-win-bias-0.9-0.1_sfp_lsj-100e_coco.py',
    'Mask R-CNN, DMST': 'mask-rcnn_dmst-s_sfp_lsj-100e_coco.py',
    'Cascade Mask R-CNN': 'cascade-mask-rcnn_deit-s-bias-0.9-0.1_sfp_lsj-100e_coco.py',
    'RetinaNet': 'digits_retinanet',
    'DINO': 'digits_dino',
    'Mask2Former': 'digits_mask2former',
    'Panoptic FPN': 'digits_panoptic_fpn',
    'semantic FPN': 'digits_semantic_fpn',
}


@pytest.mark.slow
@pytest.mark.parametrize('name', DETECTORS)
def test_detectors(name, monkeypatch, clean_scope):
    """A training step and a test step through all heads; nothing of mmext's own waits."""
    # mmengine asks for torch.cuda's tensor types by name
    module = mmengine.structures.instance_data
    monkeypatch.setattr(module, 'IndexType', typing.Union[module.IndexType, Pretended])  # noqa: UP007
    config = DETECTORS[name]
    model = build(small_config(config) if config.endswith('.py') else quickstart(config))
    batch = fake_batch()
    for sample in batch['data_samples']:
        sample.gt_instances.labels %= 10
        sample.gt_sem_seg = PixelData(sem_seg=torch.randint(0, 13, (1, *sample.img_shape)))
    with PretendedCuda(backward=True) as mode:
        model.to('cuda')
        optimizer = OptimWrapper(torch.optim.AdamW(model.parameters(), lr=1e-4),
                                 clip_grad=dict(max_norm=1))
        with mode.counting() as training:
            losses = model.train_step(copy.deepcopy(batch), optimizer)
        assert torch.isfinite(losses['loss'].cpu())
        model.eval()
        with torch.no_grad(), mode.counting() as testing:
            found = model.test_step(copy.deepcopy(batch))
        data = model.data_preprocessor(copy.deepcopy(batch), True)
        with torch.no_grad(), mode.counting() as features:
            model.extract_feat(data['inputs'])
    assert len(found) == 2 and not features
    print(f'| {name} | {sum(training.values())} | {sum(testing.values())} |')
    for waits in (training, testing):
        # NMS is torchvision's, called by mmext where mmcv has no compiled ops
        assert {f for f in by_file(waits) if f.startswith('mmext/')} <= {'mmext/compat/mmcv_ext.py'}


# ---------------------------------------------------------------------------- attention kernels
def fused_kernels(q, k, v, mask, training):
    """Kernels whose conditions hold on a GPU from Ampere on.

    Conditions of ``can_use_flash_attention`` and ``can_use_mem_efficient_attention`` in
    aten/src/ATen/native/transformers/cuda/sdp_utils.cpp and sdp_utils_cpp.h of PyTorch; torch's own
    functions answer False without a GPU, whatever they are asked.
    """
    half = q.dtype in (torch.float16, torch.bfloat16)
    widths = {x.shape[-1] for x in (q, k, v)}
    contiguous = all(x.stride(-1) == 1 for x in (q, k, v))
    found = set()
    if half and mask is None and len(widths) == 1 and max(widths) <= 256 and contiguous:
        found.add('flash')
    align = 8 if half else 4
    if (contiguous and all(width % align == 0 for width in widths)
            and (mask is None or mask.stride(-1) == 1)):
        found.add('efficient')
    return found


def attention_calls(name, dtype, training):
    make, _ = BACKBONES[name]
    torch.manual_seed(0)
    model = make()
    with PretendedCuda(), RecordAttention() as record:
        model.to('cuda').train(training)
        x = images(4 if 'valid' in name else 3).to('cuda')
        if dtype is not torch.float32:
            torch.set_autocast_enabled('cuda', True)
            torch.set_autocast_dtype('cuda', dtype)
        try:
            with torch.set_grad_enabled(training):
                model(x)
        finally:
            torch.set_autocast_enabled('cuda', False)
    return record.calls


# (kernel in half precision, in fp32); every call of the network has one of them
KERNELS = {
    'plain': ({'flash', 'efficient'}, {'efficient'}),
    'bias, dense': ({'flash', 'efficient'}, {'efficient'}),
    'bias, pruned': ({'flash', 'efficient'}, {'efficient'}),
    'bias, pruned, gathered in training': ({'flash', 'efficient'}, {'efficient'}),
    'bias, valid mask': ({'flash', 'efficient'}, {'efficient'}),
    'bias, threshold': ({'flash', 'efficient'}, {'efficient'}),
    'bias, windows': ({'efficient'}, {'efficient'}),
    'DINOv2': ({'flash', 'efficient'}, {'efficient'}),
    'DINOv3': ({'flash', 'efficient'}, {'efficient'}),
    'EVA-02': ({'flash', 'efficient'}, {'efficient'}),
}


@pytest.mark.parametrize('name', KERNELS)
def test_fused_kernels(name):
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for training in (False, True):
            calls = attention_calls(name, dtype, training)
            assert len(calls) == 2
            for call in calls:
                q, mask = call['query'], call.get('attn_mask')
                assert q.dtype == dtype and (mask is None or mask.dtype in (dtype, torch.bool))
                got = fused_kernels(q, call['key'], call['value'], mask, training)
                assert got == KERNELS[name][dtype is torch.float32], (dtype, training, q.shape)
                if name == 'bias, dense':
                    # 32 channels of a head and the bias as further ones, padded to 8
                    assert q.shape[-1] == (32 if dtype is torch.float32 else 40)


def test_statistics_need_no_attention_kernel():
    for name in ('DMSA', 'TSSA'):
        assert not attention_calls(name, torch.bfloat16, True)


# -------------------------------------------------------------------------------------- real GPU
@pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a GPU')
@pytest.mark.parametrize('name', BACKBONES)
def test_backbones_on_a_gpu(name):
    """CUDA's own debug mode finds no wait where none is known."""
    make, known = BACKBONES[name]
    model = make().cuda().eval()
    x = images().cuda()
    torch.cuda.set_sync_debug_mode('warn' if known else 'error')
    try:
        with torch.no_grad():
            model(x)
    finally:
        torch.cuda.set_sync_debug_mode('default')


def test_page_has_the_known_waits():
    page = (ROOT / 'docs/gpu.md').read_text()
    for name in DETECTORS:
        assert re.search(rf'\| {re.escape(name)} \| \d+ \| \d+ \|', page), name
