"""Seconds that the three parts of quickstart.sh take on this machine, by a probe of two seconds.

Prints one line: data, classifier, detector. The probe is work of the detector's kind: convolutions
on maps of 32 x 32 with their gradients, and many small operations.
"""

import time
from statistics import median

from mmext.cli.arguments import command_line

# CPU seconds of one thread of an AMD EPYC, torch 2.14.1: a step of the probe, and the parts
PROBE = 0.067
PARTS = {'data': 25, 'classifier': 85, 'detector': 430}


def probe(seconds: float = 2.) -> float:
    """Seconds of one step, the median of as many as fit."""
    import torch
    from torch import nn
    torch.manual_seed(0)
    net = nn.Sequential(*[layer for _ in range(3)
                          for layer in (nn.Conv2d(64, 64, 3, padding=1), nn.GELU())])
    x, small = torch.randn(8, 64, 32, 32), torch.randn(50, 4)
    taken, end = [], time.perf_counter() + seconds
    while len(taken) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        net(x).square().mean().backward()
        for _ in range(200):
            (small[:, :2] + small[:, 2:]).clamp(min=0)
        taken.append(time.perf_counter() - start)
    return median(taken[2:])


def estimate(step: float) -> list[int]:
    """Seconds of the parts where one step of the probe takes ``step`` seconds."""
    return [max(1, round(value * step / PROBE)) for value in PARTS.values()]


if __name__ == '__main__':
    command_line(__doc__).parse_args()
    print(*estimate(probe()))
