"""A guard that never refused anything let a launch be timed as the work it started.

The meta device stands in for a GPU: its tensors are not the CPU's either, and every machine has it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from suites.host.guard import UnsynchronisedWork, device_work, refuse_device_work

NEAR, FAR = torch.zeros(4), torch.zeros(4, device="meta")


def test_work_on_the_cpu_is_over_when_the_call_is() -> None:
    assert device_work(lambda: NEAR.add_(1)) == []


@pytest.mark.parametrize("call", [lambda: FAR + 1, lambda: FAR.zero_(), lambda: FAR.copy_(NEAR)])
def test_work_on_a_device_is_refused_by_name(call: Any) -> None:
    with pytest.raises(UnsynchronisedWork, match=r"enqueues aten\.\w+.* pass synchronise=True"):
        refuse_device_work(call)


def test_a_view_of_a_device_tensor_is_no_work() -> None:
    refuse_device_work(lambda: FAR[:2].view(2, 1))


def test_a_guarded_benchmark_refuses_before_it_times(host_cost: Any) -> None:
    calls: list[int] = []

    def launch() -> None:
        calls.append(1)
        FAR.add(1)

    with pytest.raises(UnsynchronisedWork):
        host_cost(launch)
    assert len(calls) == 1, "seen once, never timed"
    host_cost(lambda: None)


def test_the_plain_fixture_is_refused_in_this_suite(pytester: pytest.Pytester) -> None:
    folder = pytester.mkpydir("host")
    (folder / "conftest.py").write_text((Path(__file__).parent / "conftest.py").read_text())
    (folder / "test_round_the_guard.py").write_text("def test_it(benchmark):\n    benchmark(int)\n")
    pytester.makeconftest("def pytest_addoption(parser):\n    parser.addoption('--device', default='cpu')\n")
    checkout = Path(__file__).resolve().parents[2]
    pytester.makeini(f"[pytest]\npythonpath = {checkout}\naddopts = --import-mode=importlib\n")
    result = pytester.runpytest_subprocess("host", "-p", "no:cacheprovider")
    result.stderr.fnmatch_lines(["*test_it: take `host_cost` in place of `benchmark`*"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR
