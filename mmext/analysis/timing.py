"""Time and memory of a few callables that are compared with each other. Needs torch alone.

All candidates run in one process, in alternation, so that a machine that slows down or speeds up
does so for all of them.
"""

import os
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import contextmanager, nullcontext
from statistics import mean, median, pstdev
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {'fused': None, 'math': SDPBackend.MATH, 'efficient': SDPBackend.EFFICIENT_ATTENTION,
            'flash': SDPBackend.FLASH_ATTENTION}


class Timing(NamedTuple):
    """Seconds of one call: median, 10th and 90th percentile, mean and standard deviation over
    ``repeat`` calls."""

    median: float
    low: float
    high: float
    repeat: int
    mean: float
    std: float


def check_device(device: torch.device | str) -> None:
    """ValueError where torch knows no such device, or this machine has none."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f'device {str(device)!r} cannot be used: {reason}') from None


def synchronise(device: torch.device | str) -> None:
    if torch.device(device).type == 'cuda':
        torch.cuda.synchronize(device)


def time_alternating(functions: dict[str, Callable[[], object]],
                     device: torch.device | str,
                     warmup: int = 3,
                     repeat: int = 10,
                     progress: Callable[[], None] | None = None) -> dict[str, Timing]:
    """Call every function ``warmup`` and then ``repeat`` times, in turn.

    Args:
        functions: name -> callable without arguments.
        progress: called after each round.
    """
    if repeat < 1:
        raise ValueError(f'repeat={repeat} must be at least 1')
    seconds = {name: [] for name in functions}
    for turn in range(warmup + repeat):
        for name, function in functions.items():
            synchronise(device)
            start = time.perf_counter()
            function()
            synchronise(device)
            if turn >= warmup:
                seconds[name].append(time.perf_counter() - start)
        if progress is not None:
            progress()
    return {name: summarize(values) for name, values in seconds.items()}


def summarize(values: list[float]) -> Timing:
    values = sorted(values)
    last = len(values) - 1
    return Timing(
        median(values), values[round(0.1 * last)], values[round(0.9 * last)], len(values),
        mean(values), pstdev(values))


def peak_bytes(function: Callable[[], object], device: torch.device | str) -> int:
    """Most memory allocated at a time during one call, beyond what was allocated before it.

    On CUDA from the caching allocator; on the CPU from the profiler's allocation events, which
    include buffers inside kernels as far as they come from torch's allocator.
    """
    if torch.device(device).type == 'cuda':
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        function()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    activities = [torch.profiler.ProfilerActivity.CPU]
    with _quiet_stderr(), torch.profiler.profile(
            activities=activities, profile_memory=True) as profiler:
        result = function()
        del result
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == '[memory]']
    events.sort(key=lambda e: e.start_ns())
    now = peak = 0
    for event in events:
        now += event.nbytes()
        peak = max(peak, now)
    return peak


@contextmanager
def _quiet_stderr():
    """The profiler's library writes two lines on each start, below Python."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, 'w') as sink:
        os.dup2(sink.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def saved_bytes(function: Callable[[], object], ignore: Iterable[Tensor] = ()) -> int:
    """Bytes that autograd keeps for backward during one forward call.

    Every storage counts once and in full, however many tensors or views of it are saved: that is
    the memory which stays allocated. Parameters do not count, they are there anyway; a copy of one
    (autocast's, for one) does.

    Args:
        function: the forward pass; its input should require a gradient, as inside a model.
        ignore: further tensors that exist anyway, such as the input.
    """
    known = {tensor.untyped_storage().data_ptr() for tensor in ignore}
    kept = {}  # holding the tensors keeps an address from being used twice

    def pack(tensor: Tensor) -> Tensor:
        address = tensor.untyped_storage().data_ptr()
        if address not in known and not _is_parameter(tensor):
            kept[tensor.device, address] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = function()
    total = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    del result
    return total


def _is_parameter(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)


def training_step(module: nn.Module, x: Tensor) -> Callable[[], None]:
    """Forward and backward of ``module(x).sum()``, without an optimizer."""

    def step() -> None:
        module.zero_grad(set_to_none=True)
        out = module(x)
        out = out[-1] if isinstance(out, tuple) else out
        out.float().sum().backward()

    return step


@contextmanager
def attention_backend(name: str):
    """Attention by one of ``BACKENDS``; 'fused' is what torch chooses by itself.

    Raises:
        ValueError: an unknown name.
    """
    if name not in BACKENDS:
        raise ValueError(f'backend={name!r} must be one of {tuple(BACKENDS)}')
    with nullcontext() if BACKENDS[name] is None else sdpa_kernel(BACKENDS[name]):
        yield


def backend_refusal(name: str, device: torch.device | str, dtype: torch.dtype = torch.float32
                    ) -> str | None:
    """Why plain attention cannot run by a backend on this device in this precision, or None."""
    q = torch.zeros(1, 1, 16, 64, device=device, dtype=dtype)
    try:
        with attention_backend(name), warnings.catch_warnings():
            warnings.simplefilter('ignore')
            torch.nn.functional.scaled_dot_product_attention(q, q, q)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return None


def environment(device: torch.device | str) -> dict[str, str]:
    """What a number was measured on."""
    device = torch.device(device)
    if device.type == 'cuda':
        hardware = (f'{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}, '
                    f'TF32 {torch.backends.cuda.matmul.allow_tf32}')
    else:
        hardware = f'{cpu_name()}, {torch.get_num_threads()} threads'
    return {
        'hardware': hardware,
        'torch': torch.__version__,
        'python': platform.python_version(),
        'system': f'{platform.system()} {platform.machine()}',
    }


def cpu_name() -> str:
    try:
        with open('/proc/cpuinfo') as info:
            names = [line.split(':', 1)[1].strip() for line in info
                     if line.startswith('model name')]
        return names[0]
    except (OSError, IndexError):
        return platform.processor() or 'CPU'
