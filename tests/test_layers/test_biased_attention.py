"""BiasedAttention against timm's Attention, the plain formula and its own other paths."""

import pytest
import torch
from timm.layers import Attention
from timm.models.vision_transformer_sam import Attention as SamAttention

from mmext.analysis.timing import saved_bytes
from mmext.layers import BiasedAttention, QueryKeyFreeAttention, RelativeBiasedAttention


def layer(dtype=torch.float64, cls=BiasedAttention, **kwargs):
    torch.manual_seed(0)
    attn = cls(32, 4, qkv_bias=True, **kwargs).to(dtype)
    torch.nn.init.normal_(attn.key_bias.weight)
    return attn


def inputs(n=30, dtype=torch.float64):
    return torch.randn(2, n, 32, generator=torch.Generator().manual_seed(1)).to(dtype)


def grads(attn, x, **kwargs):
    x = x.clone().requires_grad_()
    attn.zero_grad()
    out = attn(x, **kwargs)
    (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
    return [out.detach(), x.grad] + [p.grad.clone() for p in attn.parameters()]


@pytest.mark.parametrize('qk_norm', [False, True])
def test_zero_bias_equals_timm(qk_norm):
    torch.manual_seed(0)
    ours = BiasedAttention(32, 4, qkv_bias=True, qk_norm=qk_norm, bias_init='zeros')
    timm = Attention(32, 4, qkv_bias=True, qk_norm=qk_norm, norm_layer=torch.nn.LayerNorm)
    result = ours.load_state_dict(timm.state_dict(), strict=False)
    assert result.missing_keys == ['key_bias.weight'] and not result.unexpected_keys
    x = inputs(dtype=torch.float32)
    torch.testing.assert_close(ours(x), timm(x))


def test_bias_is_added_after_scaling_and_costs_d_times_h():
    attn, x = layer(), inputs()
    q, k, v = attn.qkv(x).view(2, 30, 3, 4, 8).permute(2, 0, 3, 1, 4)
    logits = q @ k.transpose(-2, -1) / 8 ** 0.5 + attn.key_bias(x).transpose(1, 2)[:, :, None]
    want = attn.proj((logits.softmax(-1) @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attn(x), want)
    extra = sum(p.numel() for p in attn.parameters()) - sum(
        p.numel() for p in Attention(32, 4, qkv_bias=True).parameters())
    assert extra == 32 * 4


@pytest.mark.parametrize('options', [
    dict(keep_ratio=0.3), dict(tau=0.4), dict(keep_ratio=0.02), dict(keep_ratio=0.99),
    dict(keep_ratio=0.3, keep_prefix=True, num_prefix_tokens=1),
    dict(keep_ratio=0.4, cls=QueryKeyFreeAttention),
    dict(keep_ratio=0.5, cls=RelativeBiasedAttention, rel_pos_size=(5, 6)),
    dict(keep_ratio=0.4, gated=True, scale_norm=True, qk_norm=True, attn_head_dim=12)])
@pytest.mark.parametrize('padded', [False, True])
def test_mask_and_both_gathers_agree_in_value_and_gradient(options, padded):
    valid = None
    if padded:
        valid = torch.ones(2, 30, dtype=torch.bool)
        valid[0, 20:] = False
    results = []
    for mode, gather in (('mask', 'auto'), ('gather', 'after'), ('gather', 'before')):
        attn = layer(train_mode=mode, gather=gather, **options)
        if 'rel_pos_size' in options:
            torch.nn.init.normal_(attn.rel_pos_h)
            torch.nn.init.normal_(attn.rel_pos_w)
        results.append(grads(attn, inputs(), hw=(5, 6), valid=valid))
    for other in results[1:]:
        for want, got in zip(results[0], other, strict=True):
            torch.testing.assert_close(got, want)


def test_padding_never_matters():
    attn = layer(keep_ratio=0.3).eval()
    valid = torch.ones(2, 30, dtype=torch.bool)
    valid[:, 20:] = False
    x = inputs()
    changed = torch.where(valid[..., None], x, 50.0)
    torch.testing.assert_close(attn(x, valid=valid)[valid], attn(changed, valid=valid)[valid])
    torch.testing.assert_close(attn(x, valid=valid)[:, :20], attn(x[:, :20]))


def test_four_combinations_of_training_and_validation():
    """Table 4: pruning in training and in validation are separate switches."""
    x, outs = inputs(), {}
    for train in (None, 0.2):
        for val in (None, 0.2):
            attn = layer(keep_ratio=train, keep_ratio_val=val)
            outs[train, val] = attn.train()(x), attn.eval()(x)
    dense, pruned = outs[None, None][0], outs[0.2, 0.2][0]
    assert (dense - pruned).abs().max() > 1e-2
    for (train, val), (in_train, in_val) in outs.items():
        torch.testing.assert_close(in_train, dense if train is None else pruned)
        torch.testing.assert_close(in_val, dense if val is None else pruned)


def test_live_changes():
    attn, x = layer().eval(), inputs()
    dense = attn(x)
    attn.set_keep_ratio(0.1, train=False)
    pruned = attn(x)
    assert (pruned - dense).abs().max() > 1e-2
    torch.testing.assert_close(attn.train()(x), dense)
    attn.eval().set_tau(0.5)
    assert (attn(x) - dense).abs().max() > 1e-3
    attn.set_keep_ratio(None)
    torch.testing.assert_close(attn(x), dense)


@pytest.mark.parametrize('options', [dict(), dict(keep_ratio=0.3), dict(tau=0.6),
                                     dict(keep_ratio=0.3, cls=QueryKeyFreeAttention)])
def test_intermediates(options):
    attn, x = layer(**options).eval(), inputs()
    out, extras = attn.forward_intermediates(x)
    torch.testing.assert_close(out, attn(x))
    n = 30
    assert extras['logits'].shape == extras['attn'].shape == (2, 4, n, n)
    assert extras['bias'].shape == extras['kept'].shape == (2, 4, n)
    logits = extras['logits'] + extras['bias'][:, :, None]
    logits = logits.masked_fill(~extras['kept'][:, :, None], -torch.inf)
    torch.testing.assert_close(extras['attn'], logits.softmax(-1))
    v = attn.v(x) if isinstance(attn, QueryKeyFreeAttention) else attn.qkv(x)[..., 64:]
    v = v.view(2, n, 4, 8).transpose(1, 2)
    want = attn.proj((extras['attn'] @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(out, want)
    if 'keep_ratio' in options:
        assert (extras['kept'].sum(-1) == 9).all()


def test_query_key_free_takes_the_value_rows_of_a_dense_layer():
    dense, free = layer(), layer(cls=QueryKeyFreeAttention)
    assert not hasattr(free, 'qkv')
    free.load_state_dict(dense.state_dict())
    assert torch.equal(free.v.weight, dense.qkv.weight[64:])
    assert torch.equal(free.v.bias, dense.qkv.bias[64:])
    out = free(inputs())
    torch.testing.assert_close(out, out[:, :1].expand_as(out))  # the same for every query


def test_relative_positions_equal_segment_anything():
    """SAM's ViT, as detectron2's ViTDet, adds q . R_h + q . R_w to the scaled logits."""
    torch.manual_seed(0)
    sam = SamAttention(32, 4, qkv_bias=True, use_rel_pos=True, input_size=(5, 6)).double()
    torch.nn.init.normal_(sam.rel_pos_h)
    torch.nn.init.normal_(sam.rel_pos_w)
    ours = RelativeBiasedAttention(
        32, 4, qkv_bias=True, key_bias=False, rel_pos_size=(5, 6)).double()
    ours.load_state_dict(sam.state_dict())
    x = inputs()
    want = sam(x.view(2, 5, 6, 32)).view(2, 30, 32)
    torch.testing.assert_close(ours(x, (5, 6)), want)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_autocast_selects_as_fp32_does(dtype):
    attn, x = layer(torch.float32, keep_ratio=0.3).eval(), inputs(dtype=torch.float32)
    want, full = attn.forward_intermediates(x)
    with torch.autocast('cpu', dtype):
        got, half = attn.forward_intermediates(x)
    assert torch.equal(full['kept'], half['kept'])
    torch.testing.assert_close(got.float(), want, rtol=0.05, atol=0.05)
    got = attn.to(dtype)(x.to(dtype))
    assert got.dtype == dtype and got.isfinite().all()


@pytest.mark.parametrize('options', [dict(keep_ratio=0.3), dict(tau=0.4, val_mode='mask'),
                                     dict(keep_ratio=0.3, gather='before')])
def test_one_graph_without_breaks(options):
    torch._dynamo.reset()
    attn, x = layer(**options).eval(), inputs()
    compiled = torch.compile(attn, fullgraph=True, backend='aot_eager')
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), attn(x))


def test_one_training_graph_gathering_before_projection():
    torch._dynamo.reset()
    attn, x = layer(keep_ratio=0.3, gather='before', train_mode='gather').train(), inputs()
    compiled = torch.compile(attn, fullgraph=True, backend='aot_eager')
    want = torch.autograd.grad(attn(x).square().sum(), list(attn.parameters()))
    got = torch.autograd.grad(compiled(x).square().sum(), list(attn.parameters()))
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize('dtype', [None, torch.bfloat16])
def test_training_gathers_before_or_after_alike(dtype):
    """Under autocast to ``dtype`` as well; before keeps less for backward: no k and v of all."""
    x = inputs()
    results = {}
    for gather in ('after', 'before'):
        torch.manual_seed(0)
        attn = layer(keep_ratio=0.3, gather=gather, train_mode='gather').train()
        with torch.autocast('cpu', dtype, enabled=dtype is not None):
            kept = saved_bytes(lambda attn=attn: attn(x), [x, *attn.parameters()])
            loss = attn(x).float().square().sum()
        results[gather] = kept, torch.autograd.grad(loss, list(attn.parameters()))
    tolerance = dict(rtol=0.05, atol=0.05) if dtype else {}
    torch.testing.assert_close(results['before'][1], results['after'][1], **tolerance)
    assert results['before'][0] < results['after'][0]


@pytest.mark.parametrize('options, message', [
    (dict(keep_ratio=0), 'keep_ratio=0'), (dict(keep_ratio=1.5), 'keep_ratio=1.5'),
    (dict(keep_ratio_val=-1), 'keep_ratio_val=-1'), (dict(tau=0), 'tau=0'),
    (dict(tau=-2), 'tau=-2'),
    (dict(tau=1.1), 'tau=1.1'), (dict(tau=0.5, keep_ratio=0.5), 'keep_ratio=None or tau=None'),
    (dict(tau=0.5, keep_ratio_val=0.5), 'keep_ratio_val=None or tau_val=None'),
    (dict(key_bias=False, keep_ratio=0.5), 'key_bias=True'),
    (dict(train_mode='soft'), "train_mode='soft'"), (dict(gather='never'), "gather='never'"),
    (dict(bias_init='ones'), "bias_init='ones'"), (dict(num_heads=5), 'num_heads=5'),
    (dict(cls=QueryKeyFreeAttention, key_bias=False), 'key_bias=True'),
    (dict(cls=QueryKeyFreeAttention, qk_norm=True), 'qk_norm')])
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        options.pop('cls', BiasedAttention)(32, **{'num_heads': 4, **options})
