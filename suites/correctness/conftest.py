"""What the tests of recordings share: a device, and a graph pool that the next test finds empty."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from atom_impl.device import get_device
from atom_impl.utils.region_graph import reset_graph_pool


@pytest.fixture
def clean_pool() -> Iterator[None]:
    yield
    reset_graph_pool()


@pytest.fixture
def dev(device: str) -> torch.device:
    return get_device(device).torch_device
