"""DMSA and TSSA layers: parts, precision, memory, identities with the other attentions."""

import inspect

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mmext.analysis.timing import saved_bytes
from mmext.layers import DMSA, DMSA_VARIANTS, MSSA, TSSA, GatedMHSA
from mmext.ops import soft_threshold


def official_tssa(layer, x):
    """TSSA step by step as the official code computes it, with every temporary."""
    w = layer.qkv(x).unflatten(-1, (layer.num_heads, -1)).transpose(1, 2)
    w_sq = F.normalize(w, dim=-2)**2
    pi = (w_sq.sum(-1) * layer.temp).softmax(1)
    dots = torch.matmul((pi / (pi.sum(-1, keepdim=True) + 1e-8)).unsqueeze(-2), w**2)
    out = -torch.mul(w.mul(pi.unsqueeze(-1)), 1. / (1 + dots))
    return layer.to_out(out.transpose(1, 2).reshape(x.shape))


def dmsa_by_hand(layer, x):
    """The default DMSA without RoPE, one head at a time."""
    outs = []
    v, logits = layer.qkv(x), x @ layer.membership.weight.T * layer.temp[:, 0]
    pi, gate = logits.softmax(-1), soft_threshold(logits, -1)
    p = layer.head_dim
    for k in range(layer.num_heads):
        u = v[..., k * p:(k + 1) * p] * gate[..., k:k + 1]
        share = pi[..., k] / (pi[..., k].sum(1, keepdim=True) + 1e-8)
        m = torch.einsum('bn,bnp->bp', share, u**2)[:, None]
        outs.append(-u * pi[..., k:k + 1] / (1 + m))
    return layer.to_out(torch.cat(outs, -1))


def randomise(layer):
    for p in layer.parameters():
        nn.init.normal_(p, std=.2 if p.ndim > 1 else .1)
    return layer


def test_tssa_layer_equals_official_steps():
    torch.manual_seed(0)
    layer, x = randomise(TSSA(48, 4)).double(), torch.randn(2, 30, 48, dtype=torch.float64)
    torch.testing.assert_close(layer(x), official_tssa(layer, x))
    assert set(layer.state_dict()) == {
        'qkv.weight', 'qkv.bias', 'temp', 'to_out.0.weight', 'to_out.0.bias'}


def test_dmsa_layer_by_hand():
    torch.manual_seed(1)
    layer, x = randomise(DMSA(48, 4)).double(), torch.randn(2, 30, 48, dtype=torch.float64)
    torch.testing.assert_close(layer(x), dmsa_by_hand(layer, x))
    assert set(layer.state_dict()) == {'qkv.weight', 'qkv.bias', 'temp', 'membership.weight',
                                       'to_out.0.weight', 'to_out.0.bias'}


@pytest.mark.parametrize('dim, heads', [(192, 4), (384, 8)])
def test_dmsa_adds_d_times_h_parameters(dim, heads):
    count = [sum(p.numel() for p in layer.parameters()) for layer in (
        DMSA(dim, heads), TSSA(dim, heads))]
    assert count[0] - count[1] == dim * heads


@pytest.mark.parametrize('variant', DMSA_VARIANTS)
def test_variants_of_table_2(variant):
    torch.manual_seed(2)
    layer = randomise(DMSA(32, 4, rope='none', **DMSA_VARIANTS[variant])).double()
    x = torch.randn(2, 20, 32, dtype=torch.float64)
    v = layer.qkv(x).unflatten(-1, (4, 8)).transpose(1, 2)
    logits = (x @ layer.membership.weight.T).transpose(1, 2) * layer.temp
    pi = logits.softmax(1) if variant == 'DMSA' else soft_threshold(logits, -1)
    u = v if variant == 'TPUSA' else v * soft_threshold(logits, 1)[..., None]
    share = pi / (pi.sum(-1, keepdim=True) + 1e-8)
    m = (share[..., None] * u**2).sum(2, keepdim=True)
    expected = layer.to_out((-u * pi[..., None] / (1 + m)).transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(x), expected)


OPTIONS = [
    dict(), dict(use_temp=False), dict(membership_bias=True), dict(rope='none'),
    dict(rope='membership'), dict(rope='both', rope_mode='raster'), dict(sign=1),
    dict(gate_act='shrink', learn_lambda=True), dict(gate_act='gelu', pi_norm='sigmoid'),
    dict(sparse_dim='both'), dict(gate_scope='output', gate_act='sigmoid'),
]


@pytest.mark.parametrize('options', OPTIONS, ids=str)
def test_every_parameter_gets_a_gradient(options):
    torch.manual_seed(3)
    layer = randomise(DMSA(48, 4, **options))
    layer(torch.randn(2, 12, 48), (3, 4)).square().sum().backward()
    for name, p in layer.named_parameters():
        assert p.grad is not None and p.grad.abs().sum() > 0, name


@pytest.mark.parametrize('options', OPTIONS, ids=str)
def test_inference_equals_training_forward(options):
    torch.manual_seed(4)
    layer, x = randomise(DMSA(48, 4, **options)), torch.randn(2, 13, 48)
    expected = layer(x, (3, 4))
    with torch.no_grad():
        torch.testing.assert_close(layer(x, (3, 4)), expected)
        out, extras = layer.forward_intermediates(x, (3, 4))
    torch.testing.assert_close(out, expected)
    assert {k: tuple(v.shape) for k, v in extras.items()} == {
        'membership': (2, 4, 13), 'gate': (2, 4, 13), 'second_moment': (2, 4, 12),
        'v': (2, 4, 13, 12)}


def test_inference_leaves_what_a_hook_saw():
    """The result may be written over the projection only where nobody else holds it."""
    layer, x = DMSA(48, 4), torch.randn(1, 12, 48)
    seen = []
    handle = layer.qkv.register_forward_hook(lambda *args: seen.append(args[-1]))
    with torch.no_grad():
        layer(x, (3, 4))
        handle.remove()
        torch.testing.assert_close(seen[0], layer.qkv(x))


def test_rope_needs_the_grid_and_changes_the_output():
    torch.manual_seed(5)
    layer, x = randomise(DMSA(48, 4)), torch.randn(1, 12, 48)
    assert (layer(x, (3, 4)) - layer(x, (4, 3))).abs().max() > 1e-4
    plain = DMSA(48, 4, rope='none')
    plain.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(x), plain(x, (3, 4)))


@pytest.mark.parametrize('make', [
    lambda: DMSA(48, 4), lambda: DMSA(48, 4, sparse_dim='both'), lambda: TSSA(48, 4),
    lambda: MSSA(48, 4), lambda: GatedMHSA(48, 4)], ids=['dmsa', 'tpsusa', 'tssa', 'mssa', 'g1'])
@pytest.mark.parametrize('explicit', [False, True])
def test_valid_keeps_padding_out(make, explicit):
    torch.manual_seed(6)
    layer, x = randomise(make()).double(), torch.randn(2, 12, 48, dtype=torch.float64)
    valid = torch.zeros(2, 3, 4, dtype=torch.bool)
    valid[:, :, :2] = True  # the left half of a 3 x 4 grid
    left = x.unflatten(1, (3, 4))[:, :, :2].flatten(1, 2)
    if explicit:
        out = layer.forward_intermediates(x, (3, 4), valid.flatten(1))[0]
        expected = layer.forward_intermediates(left, (3, 2))[0]
    else:
        out, expected = layer(x, (3, 4), valid.flatten(1)), layer(left, (3, 2))
    out = out.unflatten(1, (3, 4))[:, :, :2].flatten(1, 2)
    torch.testing.assert_close(out, expected)
    x2 = x.clone()
    x2.unflatten(1, (3, 4))[:, :, 2:] += 100.
    again = layer(x2, (3, 4), valid.flatten(1))
    torch.testing.assert_close(again.unflatten(1, (3, 4))[:, :, :2].flatten(1, 2), expected)


def test_attention_dropout_is_on_the_shrinkage():
    torch.manual_seed(7)
    layer, x = DMSA(48, 4, attn_drop=.5), torch.randn(1, 30, 48)
    kept = []
    layer.to_out[0].register_forward_pre_hook(lambda _, args: kept.append(args[0]))
    layer(x)
    dead = (kept[0] == 0).all(1)  # a dropped channel is zero for every token
    assert 0.2 < dead.float().mean() < 0.8
    layer.eval()
    layer(x)
    assert not (kept[1] == 0).all(1).any()


# --------------------------------------------------------------------------- G1, MHSA, MSSA
def test_gated_equals_timm():
    from timm.layers import Attention
    torch.manual_seed(8)
    x = torch.randn(2, 10, 32)
    for gate in ('none', 'elementwise'):
        gated = {'gated': True} if gate == 'elementwise' else {}
        if gated and 'gated' not in inspect.signature(Attention).parameters:
            pytest.skip('this timm has no gate')
        ours = GatedMHSA(32, 4, gate=gate)
        theirs = Attention(32, 4, qkv_bias=True, **gated)
        theirs.load_state_dict(ours.state_dict(), strict=True)
        torch.testing.assert_close(ours(x), theirs(x))
        torch.testing.assert_close(ours.forward_intermediates(x)[0], theirs(x))


def test_headwise_gate_is_a_repeated_elementwise_gate():
    torch.manual_seed(9)
    head, element = GatedMHSA(32, 4, gate='headwise'), GatedMHSA(32, 4, gate='elementwise')
    state = head.state_dict()
    state['gate.weight'] = state['gate.weight'].repeat_interleave(8, 0)
    state['gate.bias'] = state['gate.bias'].repeat_interleave(8, 0)
    element.load_state_dict(state)
    x = torch.randn(2, 10, 32)
    torch.testing.assert_close(head(x), element(x))


def test_g1_headwise_is_dmsa_gated_at_the_output_only():
    """Y' = Y sigmoid(x W_theta) on the core without a gate, before the output projection."""
    torch.manual_seed(10)
    gated = randomise(DMSA(32, 4, gate_scope='output', gate_act='sigmoid')).double()
    plain = DMSA(32, 4, gate_act='none').double()
    plain.load_state_dict(gated.state_dict())
    x = torch.randn(2, 12, 32, dtype=torch.float64)
    core = []
    plain.to_out[0].register_forward_pre_hook(lambda _, args: core.append(args[0]))
    plain(x, (3, 4))
    theta = gated.membership.weight * gated.temp
    gate = torch.sigmoid(F.linear(x, theta)).repeat_interleave(8, -1)
    torch.testing.assert_close(gated(x, (3, 4)), gated.to_out(core[0] * gate))
    # with the gate in m too it is another operator
    inside = DMSA(32, 4, gate_act='sigmoid').double()
    inside.load_state_dict(gated.state_dict())
    assert (inside(x, (3, 4)) - gated(x, (3, 4))).abs().max() > 1e-4


def test_mssa_equals_definition():
    torch.manual_seed(11)
    layer, x = MSSA(32, 4), torch.randn(2, 9, 32)
    w = layer.qkv(x).unflatten(-1, (4, 8)).transpose(1, 2)
    y = (w @ w.transpose(-1, -2) * 8**-.5).softmax(-1) @ w
    expected = layer.to_out(y.transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(x), expected)
    out, extras = layer.forward_intermediates(x)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(extras['attn'].sum(-1), torch.ones(2, 4, 9))
    assert layer.qkv.bias is None


# --------------------------------------------------------------------------- memory
@pytest.mark.parametrize('dim, heads', [(192, 4), (384, 8)])
@pytest.mark.parametrize('n', [196, 1024, 4096, 16384])
def test_saved_bytes(dim, heads, n):
    """21 % less than TSSA as its official code writes it, and less than MHSA, at every length."""
    x = torch.empty(1, n, dim).normal_().requires_grad_()
    side = int(n**.5)
    dmsa, tssa = DMSA(dim, heads), TSSA(dim, heads)
    mhsa = GatedMHSA(dim, heads, gate='none')
    ours = saved_bytes(lambda: dmsa(x, (side, side)))
    assert ours <= 0.79 * saved_bytes(lambda: official_tssa(tssa, x))
    assert saved_bytes(lambda: tssa(x)) <= 0.79 * saved_bytes(lambda: official_tssa(tssa, x))
    if n <= 4096:  # fused: grows linearly like ours, so the ratio stays
        assert ours < saved_bytes(lambda: mhsa(x))
    if n <= 1024:  # naive: quadratic
        assert ours < saved_bytes(lambda: mhsa.forward_intermediates(x))
    # x, v and the input of the output projection, and per-token scalars
    assert ours <= 3.2 * x.numel() * 4


def test_saved_bytes_under_autocast():
    x = torch.randn(1, 1024, 192, requires_grad=True)
    dmsa, tssa = DMSA(192, 4), TSSA(192, 4)
    with torch.autocast('cpu', torch.bfloat16):
        ours = saved_bytes(lambda: dmsa(x, (32, 32)))
        assert ours <= 0.79 * saved_bytes(lambda: official_tssa(tssa, x))


# --------------------------------------------------------------------------- precision
INPUTS = {
    'normal': lambda n: torch.randn(1, n, 48),
    'x1e3': lambda n: torch.randn(1, n, 48) * 1e3,
    'zeros': lambda n: torch.zeros(1, n, 48),
    'constant': lambda n: torch.randn(1, 1, 48).expand(1, n, 48).contiguous(),
}


@pytest.mark.parametrize('kind', INPUTS)
@pytest.mark.parametrize('mode', ['half', 'bf16', 'autocast'])
@pytest.mark.parametrize('cls', [DMSA, TSSA])
@pytest.mark.parametrize('n', [256, 65536])
def test_reduced_precision(cls, mode, kind, n):
    """Finite, and as close to fp32 (same rounded weights and tokens) as a few roundings allow."""
    torch.manual_seed(12)
    dtype = {'half': torch.float16}.get(mode, torch.bfloat16)
    layer = cls(48, 4).to(dtype).float()  # weights that the reduced type holds exactly
    x = INPUTS[kind](n).to(dtype).float()
    hw = (round(n**.5),) * 2
    # a loss scale as GradScaler has it, fp16 gradients are subnormal without
    weight = torch.randn(1, n, 48) * 1024 * (64 / n)**.5

    def run(layer, x):
        x = x.detach().requires_grad_()
        out = layer(x, hw)
        grads = torch.autograd.grad((out.float() * weight).sum(), [x, *layer.parameters()])
        return [out, *grads]

    expected = run(layer, x)
    if mode == 'autocast':
        with torch.autocast('cpu', dtype):
            results = run(layer, x)
    else:
        results = run(layer.to(dtype), x.to(dtype))
    for result, ref in zip(results, expected, strict=True):
        assert result.isfinite().all() and ref.isfinite().all()
        error = (result.float() - ref).norm() / ref.norm().clamp_min(1e-6)
        assert error <= 4 * torch.finfo(dtype).eps


# --------------------------------------------------------------------------- construction
def test_errors_name_the_value():
    with pytest.raises(ValueError, match='dim=50 must be divisible by num_heads=4'):
        DMSA(50, 4)
    with pytest.raises(ValueError, match='qk_norm'):
        TSSA(48, 4, qk_norm=True)
    with pytest.raises(ValueError, match="gate_act='swish'"):
        DMSA(48, 4, gate_act='swish')
    with pytest.raises(ValueError, match="rope='keys'"):
        DMSA(48, 4, rope='keys')
    with pytest.raises(ValueError, match='divisible by 4, got 6'):
        DMSA(24, 4)
    DMSA(24, 4, rope='none')
    with pytest.raises(ValueError, match='learn_lambda'):
        DMSA(48, 4, learn_lambda=True)
    with pytest.raises(ValueError, match="gate='channel'"):
        GatedMHSA(48, 4, gate='channel')


@pytest.mark.parametrize('grad', [False, True])
def test_compiled_layer_equals_eager(grad):
    torch.manual_seed(13)
    layer, x = randomise(DMSA(48, 4)), torch.randn(2, 12, 48)
    compiled = torch.compile(layer, fullgraph=True, backend='aot_eager')
    with torch.set_grad_enabled(grad):
        out, expected = compiled(x, (3, 4)), layer(x, (3, 4))
    torch.testing.assert_close(out, expected)
    if grad:
        params = list(layer.parameters())
        got = torch.autograd.grad(out.square().sum(), params)
        for a, b in zip(got, torch.autograd.grad(expected.square().sum(), params), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
