import pytest
import torch
from torch import nn

from mmext.analysis import timing


def test_alternation_and_counts():
    calls = []
    functions = {name: lambda name=name: calls.append(name) for name in 'ab'}
    rounds = []
    result = timing.time_alternating(functions, 'cpu', warmup=2, repeat=5,
                                     progress=lambda: rounds.append(1))
    assert calls == ['a', 'b'] * 7 and len(rounds) == 7
    assert all(t.repeat == 5 and 0 <= t.low <= t.median <= t.high for t in result.values())
    with pytest.raises(ValueError, match='repeat'):
        timing.time_alternating(functions, 'cpu', repeat=0)


def test_summary_is_median_and_percentiles():
    summary = timing.summarize([float(i) for i in range(11)])
    assert summary == (5.0, 1.0, 9.0, 11, 5.0, pytest.approx(10 ** .5))


def test_peak_memory_counts_what_lives_together():
    megabyte = 256 * 1024  # floats

    def two_at_a_time():
        a = torch.ones(megabyte)
        b = torch.ones(megabyte)
        del a, b
        torch.ones(megabyte)

    timing.peak_bytes(two_at_a_time, 'cpu')
    peak = timing.peak_bytes(two_at_a_time, 'cpu')
    assert 2 * 2**20 <= peak < 2.1 * 2**20


def test_saved_bytes():
    x = torch.rand(100, 50, requires_grad=True)
    layer = nn.Linear(50, 30)
    ignore = [x, *layer.parameters()]
    assert timing.saved_bytes(lambda: layer(x), ignore) == 0
    # gelu keeps its input; the linear layer's input and weight are ignored
    assert timing.saved_bytes(lambda: torch.nn.functional.gelu(layer(x)), ignore) == 100 * 30 * 4
    # the output of exp is kept once, though two operations want it
    assert timing.saved_bytes(lambda: x.exp().square(), ignore) == 100 * 50 * 4


def test_training_step_makes_gradients():
    layer = nn.Linear(3, 2)
    timing.training_step(layer, torch.rand(4, 3))()
    assert layer.weight.grad.abs().sum() > 0


def test_backend_names():
    q = torch.rand(1, 2, 8, 4)
    outputs = []
    for name in ('fused', 'math'):
        with timing.attention_backend(name):
            outputs.append(torch.nn.functional.scaled_dot_product_attention(q, q, q))
    assert torch.allclose(*outputs, atol=1e-6)
    with pytest.raises(ValueError, match='fast'), timing.attention_backend('fast'):
        pass


def test_environment_names_the_machine():
    info = timing.environment('cpu')
    assert torch.__version__ == info['torch'] and 'threads' in info['hardware']
