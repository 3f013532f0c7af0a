"""What runs without gradients gives what the modules give by themselves."""

import pytest
import torch
from timm.layers import Mlp
from torch import nn

from mmext.layers import inference
from mmext.models import DMST

SMALL = dict(embed_dim=32, depth=2, num_heads=4)


def shaken(model):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.is_floating_point():
                tensor.add_(.2 * torch.rand(tensor.shape, generator=generator))
    return model.eval()


@pytest.mark.parametrize('channels', [3, 4])
@pytest.mark.parametrize('size', [(64, 64), (101, 75)])
@pytest.mark.parametrize('out_type', ['featmap', 'cls_token'])
def test_backbone_with_and_without_gradients(channels, size, out_type):
    model = shaken(DMST(SMALL, out_type=out_type))
    x = torch.randn(2, channels, *size)
    if channels == 4:
        x[:, 3] = 0
        x[0, 3, :60, :50] = x[1, 3, :40, :70] = 1
    want = model(x)[0]
    assert want.requires_grad
    with torch.no_grad():
        got = model(x)[0]
    torch.testing.assert_close(got, want.detach(), atol=1e-5, rtol=1e-5)
    with torch.inference_mode():
        torch.testing.assert_close(model(x)[0], want.detach(), atol=1e-5, rtol=1e-5)


def test_in_double_precision_it_is_the_same_function():
    model = shaken(DMST(SMALL, out_type='featmap')).double()
    x = torch.randn(1, 3, 64, 96, dtype=torch.float64)
    with torch.no_grad():
        got = model(x)[0]
    torch.testing.assert_close(got, model(x)[0].detach(), atol=1e-10, rtol=1e-10)


def test_training_statistics_are_kept_without_gradients():
    """Batch norms in training mode normalize by the batch and update, gradients or not."""
    model = shaken(DMST(SMALL, out_type='featmap')).train()
    norm = model.patch_embed.proj[0][1]
    before = norm.running_mean.clone()
    with torch.no_grad():
        model(torch.randn(2, 3, 64, 64))
    assert not torch.equal(before, norm.running_mean)


def test_the_input_is_not_overwritten():
    model, x = shaken(DMST(SMALL, out_type='raw')), torch.randn(1, 4, 64, 64).abs()
    kept = x.clone()
    with torch.no_grad():
        inside = model.forward_intermediates(x)
        tokens = inside[0]['x_out'].clone()
        model(x)
    assert torch.equal(x, kept) and torch.equal(inside[1]['x_in'], tokens)


@pytest.mark.parametrize('tokens, parts', [(1, 1), (8, 1), (9, 2), (16, 2), (17, 3), (90, 12)])
def test_mlp_in_parts(tokens, parts, monkeypatch):
    monkeypatch.setattr(inference, 'HIDDEN', 2 * 8 * 64)
    seen = []
    gelu = inference.gelu_
    monkeypatch.setattr(inference, 'gelu_', lambda x: seen.append(x.shape[1]) or gelu(x))
    mlp = shaken(Mlp(16, 64))
    x = torch.randn(2, tokens, 16)
    with torch.no_grad():
        torch.testing.assert_close(inference.run_mlp(mlp, x), mlp(x), atol=1e-6, rtol=1e-5)
    assert len(seen) == parts and sum(seen) == tokens and max(seen) <= 8


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize('change', ['subclass', 'hook', 'tanh', 'dropout', 'norm', 'relu'])
def test_an_mlp_that_is_not_the_plain_one_is_called(change):
    mlp = shaken(Mlp(16, 64, drop=.5 if change == 'dropout' else 0.))
    if change == 'subclass':
        mlp.fc1 = Doubled(16, 64)
    elif change == 'hook':
        mlp.fc2.register_forward_hook(lambda layer, args, out: out + 1)
    elif change == 'tanh':
        mlp.act = nn.GELU(approximate='tanh')
    elif change == 'relu':
        mlp.act = nn.ReLU()
    elif change == 'norm':
        mlp.norm = nn.LayerNorm(64)
    else:
        mlp.train()
    assert not inference.is_plain_mlp(mlp)
    x = torch.randn(2, 600, 16)
    with torch.no_grad():
        torch.manual_seed(0)
        want = mlp(x)
        torch.manual_seed(0)
        assert torch.equal(inference.run_mlp(mlp, x), want)


@pytest.mark.parametrize('change', ['hook', 'bias', 'training', 'plain statistics', 'subclass'])
def test_a_stem_that_is_not_the_plain_one_is_called(change):
    layer = nn.Sequential(nn.Conv2d(3, 4, 3, bias=change == 'bias'), nn.BatchNorm2d(
        4, track_running_stats=change != 'plain statistics')).eval()
    if change == 'hook':
        layer[0].register_forward_hook(lambda layer, args, out: out + 1)
    elif change == 'training':
        layer.train()
    elif change == 'subclass':
        layer[0] = type('Other', (nn.Conv2d,), {})(3, 4, 3, bias=False)
    assert not inference.is_conv_norm(layer)


def test_exporters_see_the_modules():
    """Nothing in place, no fused weights: the exported program is the network's own."""
    model = shaken(DMST(SMALL, out_type='featmap'))
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        program = torch.export.export(model, (x,))
        names = {str(node.target) for node in program.graph.nodes}
        assert not any('gelu_' in name or 'addcmul' in name for name in names), names
        torch.testing.assert_close(program.module()(x)[0], model(x)[0], atol=1e-5, rtol=1e-5)
