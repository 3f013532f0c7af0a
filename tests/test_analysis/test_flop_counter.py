"""The counter against closed formulas, with every attention backend a machine offers."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from mmext.analysis import flop_formulas as flops
from mmext.analysis.flop_counter import count_by_part, count_flops

DEVICES = ['cpu', pytest.param('cuda', marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason='no GPU'))]


@pytest.mark.parametrize('device', DEVICES)
@pytest.mark.parametrize('kept', [197, 50])
@pytest.mark.parametrize('masked', [False, True])
@pytest.mark.parametrize('backend', [None, SDPBackend.MATH])
def test_attention_is_counted(backend, masked, kept, device):
    b, h, n, d = 2, 3, 197, 64
    q = torch.rand(b, h, n, d, device=device)
    k = torch.rand(b, h, kept, d, device=device)
    mask = torch.rand(b, h, 1, kept, device=device) if masked else None

    def attend():
        return F.scaled_dot_product_attention(q, k, k, attn_mask=mask)

    if backend is None:
        count = count_flops(attend)
    else:
        with sdpa_kernel(backend):
            count = count_flops(attend)
    assert count.total == 2 * b * 2 * n * kept * h * d


def test_fused_cpu_kernel_was_the_one_tested():
    q = torch.rand(1, 2, 16, 8)
    by_op = count_flops(F.scaled_dot_product_attention, q, q, q).by_op
    assert list(by_op) == ['aten._scaled_dot_product_flash_attention_for_cpu']


@pytest.mark.parametrize('shape', [(224, 224), (96, 160)])
@pytest.mark.parametrize('fused', [True, False])
def test_timm_deit_equals_formula(shape, fused):
    timm = pytest.importorskip('timm')
    model = timm.create_model('deit_tiny_patch16_224', img_size=shape).eval()
    for block in model.blocks:
        block.attn.fused_attn = fused
    count = count_flops(model, torch.rand(1, 3, *shape))
    assert count.total == 2 * flops.vit_macs(shape, *flops.vit_size('deit-tiny'))
    assert count.by_module[''] == count.total
    n = count.by_module['blocks.3.attn'] // 2
    tokens = shape[0] * shape[1] // 256 + 1
    assert n == flops.mhsa_macs(tokens, 192)


def test_layers_without_a_kernel_of_their_own():
    x = torch.rand(2, 10, 16)
    attention = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    assert count_flops(attention, x, x, x).total == 2 * 2 * flops.mhsa_macs(10, 16)
    deconv = nn.ConvTranspose2d(6, 4, 2, 2)
    assert count_flops(deconv, torch.rand(1, 6, 5, 7)).total == 2 * 6 * 4 * 4 * 35
    assert count_flops(torch.mv, torch.rand(3, 4), torch.rand(4)).total == 24
    assert count_flops(torch.dot, torch.rand(4), torch.rand(4)).total == 8
    grouped = nn.Conv2d(8, 8, 3, padding=1, groups=8)
    assert count_flops(grouped, torch.rand(1, 8, 5, 5)).total == 2 * 8 * 9 * 25


def test_meta_device_counts_the_same():
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    real = count_flops(layer, torch.rand(1, 9, 32)).total
    assert count_flops(layer.to('meta'), torch.rand(1, 9, 32, device='meta')).total == real > 0


def test_by_part_needs_a_backbone():
    with pytest.raises(TypeError, match='count_flops'):
        count_by_part(nn.Linear(2, 2), torch.rand(1, 3, 8, 8))
