"""`host_cost`: the only way in which this suite times something.

Figures of two machines that share an operating system and a Python share pytest-benchmark's folder too, and a
comparison between them called new hardware a regression. So the machine's series goes into every file that is saved.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from harness import machine
from suites.host.guard import refuse_device_work

HERE = Path(__file__).parent

#: Files whose tests may take pytest-benchmark's own fixture, and why nothing is in flight when their clock stops.
OWN_CLOCK = {"test_ledger_cost.py": "it waits for the device before and after each step"}


class HostCost:
    """Times `call(*args)` with pytest-benchmark, after one untimed call that must leave no device work behind."""

    def __init__(self, benchmark: Any, device: str) -> None:
        self._benchmark = benchmark
        self._on_gpu = device.startswith("cuda")

    @property
    def extra_info(self) -> dict[str, Any]:
        return self._benchmark.extra_info

    def __call__(self, call: Callable[..., Any], *args: Any, synchronise: bool = False) -> Any:
        """Return what `call` returns. With `synchronise`, a GPU is waited for within the timed region."""
        if synchronise and self._on_gpu:
            torch.cuda.synchronize()
            return self._benchmark(_synchronised, call, *args)
        if not synchronise:
            refuse_device_work(lambda: call(*args))
        return self._benchmark(call, *args)


def _synchronised(call: Callable[..., Any], *args: Any) -> Any:
    result = call(*args)
    torch.cuda.synchronize()
    return result


@pytest.fixture
def host_cost(benchmark: Any, device: str) -> HostCost:
    return HostCost(benchmark, device)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that takes pytest-benchmark's own fixture goes round the guard."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if HERE not in item.path.parents or item.path.name in OWN_CLOCK:
            continue
        if "benchmark" in fixtures and "host_cost" not in fixtures:
            raise pytest.UsageError(f"{item.nodeid}: take `host_cost` in place of `benchmark`; it refuses device work")


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    facts = machine.fingerprint()
    machine_info["series"] = machine.series_key(facts, config.getoption("--device") or "cpu")
    machine_info["software"] = facts["software"]
    machine_info["node"] = machine_info["series"]  # a saved file is kept, and a host's name is nobody's figure
