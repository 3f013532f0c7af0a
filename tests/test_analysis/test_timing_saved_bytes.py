"""The count of saved bytes against cases that can be counted by hand."""

import torch
from torch import nn

from mmext.analysis.timing import saved_bytes


def test_linear_keeps_its_input_and_no_parameter():
    x = torch.randn(3, 5, 7, requires_grad=True)
    assert saved_bytes(lambda: nn.Linear(7, 11)(x)) == 3 * 5 * 7 * 4


def test_one_storage_counts_once():
    x = torch.randn(10, 10, requires_grad=True)
    assert saved_bytes(lambda: x.t() * x + (x * 1).view(-1)[:5].sum()) == 400
    assert saved_bytes(lambda: (x * x) * x) == 800


def test_a_view_keeps_its_whole_storage():
    x = torch.randn(100, requires_grad=True)
    assert saved_bytes(lambda: x[:10].sin()) == 400


def test_nothing_without_gradients():
    x = torch.randn(10, requires_grad=True)
    with torch.no_grad():
        assert saved_bytes(lambda: x.sin()) == 0
