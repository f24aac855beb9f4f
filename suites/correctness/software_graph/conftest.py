"""A test that fails in the middle of a capture must not take the tests after it along."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from atom_impl.device.software.thread_state import current


@pytest.fixture(autouse=True)
def _no_capture_is_left_open() -> Iterator[None]:
    yield
    graph = current()
    if graph is not None:
        graph.abort()
        pytest.fail("the test left a capture open")
