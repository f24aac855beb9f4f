"""Options that every suite shares: one test file runs against any engine, on any device, with any model.

A run that silently used the CPU of a GPU machine, or another engine than the one under test, was green for the wrong
reason. So a run says in its header what it stands for, and refuses a machine whose GPU torch cannot see.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

from harness.doctor import choose_device
from harness.engines import ENGINES
from harness.errors import HarnessError
from harness.plugins import registered_engines
from suites.skip_rule import DECLARED, SkipRule, read_declared

# A first call compiles for seconds, so an example has no deadline; the examples are the same in every run.
hypothesis.settings.register_profile("suites", deadline=None, derandomize=True)
hypothesis.settings.load_profile("suites")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("under test")
    group.addoption("--engine", default="atom_impl", help="the engine to test (default: atom_impl)")
    group.addoption("--device", choices=("cpu", "cuda"), help="default: the GPU if torch sees one, else cpu")
    group.addoption("--model", default="random:tiny-llama", help="the model to serve (default: random:tiny-llama)")


def pytest_configure(config: pytest.Config) -> None:
    try:
        config.option.device = choose_device(config.getoption("--device"))
        engines = sorted({*ENGINES, *registered_engines()})
    except (ValueError, HarnessError) as error:
        raise pytest.UsageError(str(error)) from error
    if config.option.engine not in engines:
        raise pytest.UsageError(f"--engine {config.option.engine}: no such engine; choose from {', '.join(engines)}")
    _use_one_thread()
    declared = read_declared(Path(__file__).with_name(DECLARED))
    config.pluginmanager.register(SkipRule(declared), "skip-rule")


def _use_one_thread() -> None:
    """More threads than free cores are slow, and sums differ from run to run. OMP_NUM_THREADS, if set, stands."""
    if "OMP_NUM_THREADS" not in os.environ:
        os.environ["OMP_NUM_THREADS"] = "1"  # for child processes; torch here has read it already
        torch.set_num_threads(1)


def pytest_report_header(config: pytest.Config) -> str:
    under_test = [f"{name} {config.getoption(f'--{name}')}" for name in ("engine", "device", "model")]
    return f"under test: {', '.join(under_test)}"


@pytest.fixture(scope="session")
def engine(request: pytest.FixtureRequest) -> str:
    """Name of the engine under test, as `harness.plugins.find_engine` takes it."""
    return str(request.config.getoption("--engine"))


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    """Type of the torch device under test: "cuda" (NVIDIA and AMD alike) or "cpu"."""
    return str(request.config.getoption("--device"))


@pytest.fixture(scope="session")
def model_name(request: pytest.FixtureRequest) -> str:
    """Name of the model to serve, as the engine's own registry takes it."""
    return str(request.config.getoption("--model"))


@pytest.fixture
def inference() -> Iterator[None]:
    """Inference mode, as a step runs, and the same random numbers whichever tests ran before."""
    torch.manual_seed(0)
    with torch.inference_mode():
        yield


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that is empty at first and goes with the test."""
    root = tmp_path / "cache"
    monkeypatch.setenv("ATOM_CACHE_ROOT", str(root))
    return root
