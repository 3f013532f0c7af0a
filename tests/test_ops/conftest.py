"""Operators are tested on every device there is."""

import pytest


@pytest.fixture(scope='module', autouse=True)
def on_every_device(device):
    return device
