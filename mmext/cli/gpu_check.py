"""Operators against fp64 references, benchmark tables and training steps on one device.

Needs torch, torchvision and timm alone.
"""

import json
import time
from collections.abc import Callable

import timm
import torch
from timm.layers import Attention
from torch import Tensor, nn

from mmext import ops
from mmext.analysis import timing
from mmext.cli import benchmark, benchmark_compare
from mmext.cli.arguments import use_device
from mmext.layers import DMSA, TSSA, BiasedAttention

# largest error, relative to the largest value of the reference; inputs are rounded beforehand
TOLERANCE = {'fp32': 2e-5, 'bf16': 3e-2, 'fp16': 5e-3}


def relative_error(got: Tensor, expected: Tensor) -> float:
    got, expected = got.detach().double(), expected.detach().double()
    if not got.isfinite().all():
        return float('inf')
    return float((got - expected).abs().max() / expected.abs().max().clamp(min=1e-12))


def compare(name: str, dtype: str, function: Callable, reference: Callable,
            inputs: list[Tensor]) -> dict:
    """Values and gradients of ``function`` in ``dtype`` against ``reference`` in fp64."""
    low = [x.clone().requires_grad_() for x in inputs]
    high = [x.double().requires_grad_() for x in inputs]
    out, expected = function(*low), reference(*high)
    weight = torch.randn_like(expected)
    (out.double() * weight).sum().backward()
    (expected * weight).sum().backward()
    gradients = [relative_error(a.grad, b.grad) for a, b in zip(low, high, strict=True)
                 if b.grad is not None and b.grad.abs().max() > 0]
    value, gradient = relative_error(out, expected), max(gradients)
    limit = TOLERANCE[dtype]
    return {'name': name, 'dtype': dtype, 'value': value, 'gradient': gradient,
            # a gradient sums many rounded terms: twice the room
            'limit': limit, 'ok': value <= limit and gradient <= 2 * limit}


def operator_checks(device: str, tokens: int, dtype_name: str) -> list[dict]:
    dtype = benchmark.DTYPES[dtype_name]
    torch.manual_seed(0)
    batch, heads, width = 2, 6, 64

    def random(*shape):
        return torch.randn(*shape, device=device).to(dtype)

    qkv = random(batch, tokens, 3, heads, width)
    # the bias is kept in fp32 whatever the precision of q, k, v
    bias = 3 * torch.randn(batch, heads, tokens, device=device)
    keep = torch.zeros_like(bias, dtype=torch.bool).scatter(
        -1, ops.top_k_columns(bias, 0.3)[0], True)

    def split(qkv):
        return qkv.permute(2, 0, 3, 1, 4).unbind(0)

    def reference(keep=None):
        return lambda qkv, bias: ops.reference_key_bias_attention(*split(qkv), bias, keep)[0]

    def gathered(qkv, bias):
        index, _ = ops.top_k_columns(bias, 0.3)
        k, v = ops.gather_kv(qkv, index)
        return ops.key_bias_attention(split(qkv)[0], k, v, bias.gather(-1, index))

    def query_key_free(qkv, bias):
        return ops.query_key_free_attention(split(qkv)[2], bias)

    checks = [
        compare('key bias, ' + form, dtype_name,
                lambda qkv, bias, form=form: ops.key_bias_attention(*split(qkv), bias, form=form),
                reference(), [qkv, bias])
        for form in ('auto', 'mask', 'channels')]
    checks += [
        compare('key bias, masked', dtype_name,
                lambda qkv, bias: ops.key_bias_attention(*split(qkv), bias, keep),
                reference(keep), [qkv, bias]),
        compare('key bias, gathered', dtype_name, gathered, reference(keep), [qkv, bias]),
        compare('query-key-free', dtype_name, query_key_free,
                lambda qkv, bias: bias.softmax(-1)[:, :, None] @ split(qkv)[2], [qkv, bias]),
    ]
    v = random(batch, heads, tokens, width)
    logits = torch.randn(batch, heads, tokens, device=device)
    temp = torch.ones(heads, 1, device=device)
    checks += [
        compare('TSSA', dtype_name, lambda v, temp: ops.tssa(v, temp)[0], ops.tssa_reference,
                [v, temp]),
        compare('DMSA', dtype_name, lambda v, logits: ops.dmsa(v, logits)[0], ops.dmsa_reference,
                [v, logits]),
    ]
    return checks


def layer_checks(device: str, dtype_name: str) -> list[dict]:
    """Layers in low precision against themselves in fp64, and against timm's where it is equal."""
    dtype = benchmark.DTYPES[dtype_name]
    torch.manual_seed(0)
    plain = Attention(384, 6, qkv_bias=True)
    ours = BiasedAttention(384, 6, qkv_bias=True, key_bias=False)
    ours.load_state_dict(plain.state_dict())
    pairs = {
        'layer without bias = timm': (ours, plain),
        'layer TSSA': (TSSA(384, 6), None),
        'layer DMSA': (DMSA(384, 6), None),
        'layer key bias, dense': (BiasedAttention(384, 6, qkv_bias=True), None),
    }
    checks = []
    for name, (layer, reference) in pairs.items():
        layer = layer.to(device, dtype).eval()
        reference = (reference or layer)
        twin = type(reference)(384, 6, qkv_bias=True).to(device).double().eval()
        twin.load_state_dict({k: v.double() for k, v in layer.state_dict().items()}, strict=True)
        x = torch.randn(2, 256, 384, device=device).to(dtype)
        checks.append(compare(name, dtype_name, layer, twin, [x]))
    return checks


def compile_checks(device: str) -> list[dict]:
    """torch.compile(fullgraph=True) against eager, fp32."""
    checks = []
    for name, layer in (('pruned .5', BiasedAttention(384, 6, keep_ratio=0.5)),
                        ('DMSA', DMSA(384, 6))):
        layer = layer.to(device).eval()
        x = torch.randn(1, 256, 384, device=device)
        with torch.no_grad():
            error = relative_error(torch.compile(layer, fullgraph=True)(x), layer(x))
        checks.append({'name': f'compiled {name}', 'dtype': 'fp32', 'value': error,
                       'gradient': 0.0, 'limit': TOLERANCE['fp32'],
                       'ok': error <= TOLERANCE['fp32']})
    return checks


class TokensOnly(nn.Module):
    """An attention layer of ours in a timm block, which passes a mask that we do not need."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, *args, **kwargs) -> Tensor:
        return self.layer(x)


def training_steps(device: str, size: int, batch_size: int, depth: int, repeat: int) -> dict:
    """Forward, backward and AdamW of a DeiT-S backbone with each attention, in bf16 autocast: a
    table as ``benchmark.py`` writes it."""
    def attention(name: str, i: int) -> nn.Module:
        ratio = 0.9 - 0.8 * i / max(depth - 1, 1)
        return {
            'bias': lambda: BiasedAttention(384, 6, qkv_bias=True),
            'pruned 0.9,0.1 mask': lambda: BiasedAttention(
                384, 6, qkv_bias=True, keep_ratio=ratio, train_mode='mask'),
            'pruned 0.9,0.1 gather': lambda: BiasedAttention(
                384, 6, qkv_bias=True, keep_ratio=ratio, train_mode='gather'),
            'tssa naive': lambda: benchmark.NaiveTSSA(384, 6),
            'tssa': lambda: TSSA(384, 6),
            'dmsa': lambda: DMSA(384, 6),
        }[name]()

    functions = {}
    x = torch.rand(batch_size, 3, size, size, device=device)
    for name in (benchmark.PLAIN, 'bias', 'pruned 0.9,0.1 mask', 'pruned 0.9,0.1 gather',
                 'tssa naive', 'tssa', 'dmsa'):
        model = timm.create_model('deit_small_patch16_224', img_size=size, num_classes=100)
        model.blocks = model.blocks[:depth]
        if name != benchmark.PLAIN:
            for i, block in enumerate(model.blocks):
                block.attn = TokensOnly(attention(name, i))
        model.to(device).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

        def step(model=model, optimizer=optimizer):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(torch.device(device).type, torch.bfloat16):
                loss = model(x).float().square().mean()
            loss.backward()
            optimizer.step()

        functions[name] = step
    times = timing.time_alternating(functions, device, warmup=2, repeat=repeat)
    rows = {}
    for name, value in times.items():
        cell = benchmark.cell_of(value, times[benchmark.PLAIN])
        cell['peak_mib'] = timing.peak_bytes(functions[name], device) / 2**20
        rows[name] = {'fused': cell}
        print(f"  {name:<24}{cell['ms']:10.2f} ms  x {cell['speedup']:5.2f}  "
              f"{cell['peak_mib']:10.1f} MiB")
    return {'level': f'step of DeiT-S, depth {depth}', 'train': True, 'compile': False,
            'batch': batch_size, 'extent': (size, size), 'dtype': 'bf16', 'rows': rows}


def run(args) -> int:
    """All checks and tables; 1 when a value is wrong, 3 when something got slower than in
    --against. ``args`` of tools/dev/gpu_check.py."""
    use_device(args)
    start = time.monotonic()
    on_gpu = torch.device(args.device).type == 'cuda'
    torch.backends.cuda.matmul.allow_tf32 = False  # fp32 is to mean fp32
    torch.backends.cudnn.allow_tf32 = False
    old = benchmark_compare.read(args.against) if args.against else None
    result = {'environment': timing.environment(args.device), 'checks': [], 'tables': [],
              'skipped': []}
    print(' | '.join(result['environment'].values()))

    def save():
        result['seconds'] = round(time.monotonic() - start, 1)
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(result, indent=1) + '\n')

    def in_time(what: str) -> bool:
        left = args.minutes * 60 - (time.monotonic() - start)
        if left <= 0:
            print(f'skipped, out of time: {what}')
            result['skipped'].append(what)
        return left > 0

    for dtype in TOLERANCE:
        result['checks'] += operator_checks(args.device, 1025 if on_gpu else 197, dtype)
        result['checks'] += layer_checks(args.device, dtype)
    if on_gpu:
        result['checks'] += compile_checks(args.device)
    for check in result['checks']:
        print(f"{'ok   ' if check['ok'] else 'WRONG'} {check['dtype']}  {check['name']:<28} "
              f"value {check['value']:.1e}  gradient {check['gradient']:.1e}")
    wrong = [check for check in result['checks'] if not check['ok']]
    print(f"{len(result['checks']) - len(wrong)} of {len(result['checks'])} right")
    save()
    if args.correctness_only:
        return int(bool(wrong))

    plans = [(n, b, d) for n in (1025, 4096, 16384) for b in (1, 8) for d in ('bf16', 'fp32')]
    if not on_gpu:
        plans = [(197, 1, 'fp32'), (1025, 1, 'fp32')]
    for tokens, batch, dtype in plans:
        if in_time(f'layer table N={tokens} batch {batch} {dtype}'):
            result['tables'] += benchmark.run(benchmark.layer_settings(
                tokens=[tokens], batch_size=[batch], dtype=[dtype], device=args.device,
                backend=['fused', 'math'], math_limit=8 if on_gpu else 1,
                repeat=20 if on_gpu else 5))['tables']
            save()
    for size, batch, depth in ([(512, 8, 12), (1024, 4, 12)] if on_gpu else [(128, 2, 2)]):
        if in_time(f'training step at {size}'):
            print(f'\ntraining step, DeiT-S backbone, {size} x {size}, batch {batch}, '
                  f'depth {depth}, bf16 autocast')
            result['tables'].append(
                training_steps(args.device, size, batch, depth, 10 if on_gpu else 3))
            save()
    print(f"\n{result['seconds']} s, written: {args.json}")
    if old is not None and benchmark_compare.report(old, result):
        return 1 if wrong else 3
    return int(bool(wrong))
