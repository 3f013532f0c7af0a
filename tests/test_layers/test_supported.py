"""The table of docs/supported.md: what torch can do with a module, tried on all of ours."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

from mmext.layers import DMSA, TSSA, BiasedAttention, QueryKeyFreeAttention
from mmext.layers.relative_attention import RelativeBiasedAttention
from mmext.models import DMST, BiasPrunedViT, TimmViT

HW, DIM, HEADS = (4, 4), 32, 4
LAYERS = {
    'dense': lambda: BiasedAttention(DIM, HEADS, qkv_bias=True),
    'pruned, masked in training': lambda: BiasedAttention(DIM, HEADS, keep_ratio=.5),
    'pruned, gathered': lambda: BiasedAttention(DIM, HEADS, keep_ratio=.5, train_mode='gather'),
    'threshold': lambda: BiasedAttention(DIM, HEADS, tau=.7, train_mode='gather'),
    'query-key-free': lambda: QueryKeyFreeAttention(DIM, HEADS),
    'relative': lambda: RelativeBiasedAttention(DIM, HEADS, keep_ratio=.5, rel_pos_size=HW),
    'DMSA': lambda: DMSA(DIM, HEADS),
    'TSSA': lambda: TSSA(DIM, HEADS),
}
SMALL = dict(embed_dim=32, depth=4, num_heads=4)
PRUNED = dict(arch=SMALL, img_size=64, patch_size=16, keep_ratio=(.9, .3))
BACKBONES = {
    'DeiT': lambda: BiasPrunedViT(**PRUNED),
    'windows': lambda: BiasPrunedViT(**PRUNED, with_cls_token=False, window_size=2, rel_pos=True,
                                     out_type='featmap'),
    'token merging': lambda: BiasPrunedViT(**PRUNED, tome_r=2),
    'threshold': lambda: BiasPrunedViT(**PRUNED | dict(keep_ratio=None), tau=.8),
    'DMST': lambda: DMST(SMALL, out_type='featmap'),
    'ToST': lambda: DMST(SMALL, attn='tssa'),
    'timm': lambda: TimmViT('vit_tiny_patch16_224', img_size=64, model_args=SMALL,
                            keep_ratio=(.9, .3)),
}


@pytest.fixture(params=LAYERS)
def layer(request):
    torch.manual_seed(0)
    return GridGiven(LAYERS[request.param]())


@pytest.fixture(params=BACKBONES)
def backbone(request):
    torch.manual_seed(0)
    return BACKBONES[request.param]()


class GridGiven(nn.Module):
    """A layer that is told the grid where it wants to know."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.options = {'hw': HW} if isinstance(layer, (RelativeBiasedAttention, DMSA)) else {}

    def forward(self, x):
        return self.layer(x, **self.options)


class Checkpointed(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return checkpoint(self.layer, x, use_reentrant=False)


def tokens(batch=2, dtype=torch.float32):
    return torch.randn(batch, HW[0] * HW[1], DIM, dtype=dtype)


def gradients_of(layer, x):
    return torch.autograd.grad(layer(x).square().sum(), list(layer.parameters()))


# ---------------------------------------------------------------------------- derivatives
@pytest.mark.parametrize('training', [True, False])
def test_per_sample_gradients(layer, training):
    """torch.func's vmap(grad) against one backward pass a sample."""
    layer.train(training)
    x, parameters = tokens(3), dict(layer.named_parameters())

    def loss(parameters, sample):
        return functional_call(layer, parameters, (sample[None],)).square().sum()

    found = vmap(grad(loss), (None, 0))(parameters, x)
    for i in range(3):
        for value, want in zip(found.values(), gradients_of(layer, x[i:i + 1]), strict=True):
            torch.testing.assert_close(value[i], want, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize('training', [True, False])
def test_gradient_penalty(layer, training):
    """Derivative of a gradient's norm against a difference quotient, in float64; torch's fused
    attention has no second derivative, its plain one has."""
    layer.double().train(training)
    x = tokens(dtype=torch.float64).requires_grad_()
    [weight] = [p for name, p in layer.named_parameters()
                if name.split('.')[1] in ('qkv', 'v') and name.endswith('weight')]
    direction, step = torch.randn_like(weight), 1e-6

    def penalty():
        gradient, = torch.autograd.grad(layer(x).sin().sum(), x, create_graph=True)
        return gradient.square().sum()

    with sdpa_kernel(SDPBackend.MATH):
        found, = torch.autograd.grad(penalty(), weight)
        around = []
        for sign in (1, -1):
            moved = (weight + sign * step * direction).detach()
            with torch.no_grad():
                old = weight.clone()
                weight.copy_(moved)
            around.append(penalty().item())
            with torch.no_grad():
                weight.copy_(old)
    want = (around[0] - around[1]) / (2 * step)
    assert want != 0
    assert (found * direction).sum().item() == pytest.approx(want, rel=1e-5)


def test_forward_mode(layer):
    layer.double().eval()
    x, direction = tokens(dtype=torch.float64), tokens(dtype=torch.float64)
    with sdpa_kernel(SDPBackend.MATH):
        found = jvp(layer, (x,), (direction,))[1]
        want = (layer(x + 1e-6 * direction) - layer(x - 1e-6 * direction)) / 2e-6
    torch.testing.assert_close(found, want, atol=1e-7, rtol=1e-6)


def test_activation_checkpointing(layer):
    layer.train()
    x = tokens()
    want = gradients_of(layer, x)
    found = gradients_of(Checkpointed(layer), x.requires_grad_())
    for a, b in zip(found, want, strict=True):
        assert torch.equal(a, b)


def test_deterministic_algorithms(layer):
    torch.use_deterministic_algorithms(True)
    try:
        x = tokens()
        assert all(torch.equal(a, b) for a, b in zip(
            gradients_of(layer, x), gradients_of(layer, x), strict=True))
    finally:
        torch.use_deterministic_algorithms(False)


# ---------------------------------------------------------------------------- number formats
@pytest.mark.parametrize('dtype, error', [
    (torch.float16, 1e-3), (torch.bfloat16, 1e-2), (torch.float64, 1e-6)])
def test_dtypes(layer, dtype, error):
    layer.eval()
    x = tokens()
    want = layer(x)
    found = copy.deepcopy(layer).to(dtype)(x.to(dtype))
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), want, atol=error, rtol=0)


@pytest.mark.filterwarnings('ignore::DeprecationWarning')
def test_dynamic_int8(layer):
    """Linear layers become others, which are called: the same to about 1 %, and not the same."""
    layer.eval()
    x = tokens()
    want = layer(x)
    found = torch.ao.quantization.quantize_dynamic(layer, {nn.Linear}, torch.qint8)(x)
    error = (found - want).norm() / want.norm()
    assert 0 < error < .1, error


def test_parametrizations(layer):
    layer.eval()
    x = tokens()
    want = layer(x)
    for module in list(layer.modules()):
        if type(module) is nn.Linear:
            weight_norm(module)
    torch.testing.assert_close(layer(x), want, atol=1e-6, rtol=1e-5)


# ---------------------------------------------------------------------------- copies, devices
def test_copies_and_pickles(layer):
    layer.eval()
    x = tokens()
    want = layer(x)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(twin(x), want)


def test_meta_device(layer):
    for training in (True, False):
        assert layer.to('meta').train(training)(tokens().to('meta')).shape == (2, 16, DIM)


@pytest.mark.parametrize('training', [True, False])
def test_batch_without_samples(layer, training):
    x = tokens(0).requires_grad_()
    out = layer.train(training)(x)
    assert out.shape == x.shape
    out.sum().backward()
    assert all(p.grad is None or not p.grad.any() for p in layer.parameters())


def test_one_token(layer):
    layer.options = {'hw': (1, 1)} if layer.options else {}
    assert layer.eval()(torch.randn(2, 1, DIM)).isfinite().all()


# ---------------------------------------------------------------------------- graphs
def test_compiled_as_one_graph(layer):
    layer.eval()
    x = tokens()
    torch._dynamo.reset()
    found = torch.compile(layer, fullgraph=True, backend='aot_eager')(x)
    torch.testing.assert_close(found, layer(x), atol=1e-6, rtol=1e-5)


def test_exported(layer):
    layer.eval()
    program = torch.export.export(layer, (tokens(),))
    x = tokens()
    torch.testing.assert_close(program.module()(x), layer(x), atol=1e-6, rtol=1e-5)


@pytest.mark.filterwarnings('ignore::torch.jit.TracerWarning', 'ignore::DeprecationWarning')
@pytest.mark.parametrize('recorded', [True, False], ids=['gradients', 'no gradients'])
@pytest.mark.parametrize('training', [True, False])
def test_traced_backbones(backbone, recorded, training):
    """With other images than it was traced with, a traced backbone is the eager one."""
    backbone.train(training)
    with torch.set_grad_enabled(recorded):
        traced = torch.jit.trace(backbone, torch.randn(2, 3, 64, 64), check_trace=False)
        x = torch.randn(2, 3, 64, 64)
        torch.testing.assert_close(traced(x)[0], backbone(x)[0], atol=1e-5, rtol=1e-5)


def test_scripting_is_refused_by_torch(layer):
    with pytest.raises(Exception, match=r'variable number of arguments|not supported'):
        torch.jit.script(layer.layer)


def test_backbones_with_a_batch_without_images(backbone):
    x = torch.zeros(0, 3, 64, 64)
    if isinstance(backbone, TimmViT):
        with pytest.raises(ValueError, match='vit_tiny_patch16_224: timm takes no batch without'):
            backbone(x)
        return
    for training in (True, False):
        assert backbone.train(training)(x)[0].shape[0] == 0
    with torch.no_grad():  # other forms of the layers run
        assert backbone(x)[0].shape[0] == 0


@pytest.mark.filterwarnings('ignore::DeprecationWarning')
def test_backbones_in_dynamic_int8(backbone):
    backbone.eval()
    x = torch.randn(2, 3, 64, 64)
    want = backbone(x)[0]
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        small = torch.ao.quantization.quantize_dynamic(backbone, {nn.Linear}, torch.qint8)
    assert 0 < (small(x)[0] - want).norm() / want.norm() < .5
