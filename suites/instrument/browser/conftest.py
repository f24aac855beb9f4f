"""These tests need a real browser, which a laptop may not have: without one they are left out, and it is said.

Left out is neither passed nor skipped: the run's last lines name how many were not collected and how to have them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from suites.instrument.browser import chromium

_HERE = Path(__file__).parent
_LEFT_OUT = pytest.StashKey[int]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mine = [item for item in items if _HERE in item.path.parents]
    try:
        found = chromium.find()
    except FileNotFoundError as error:
        raise pytest.UsageError(str(error)) from error
    if mine and found is None:
        config.stash[_LEFT_OUT] = len(mine)
        config.hook.pytest_deselected(items=mine)
        items[:] = [item for item in items if item not in mine]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    count = config.stash.get(_LEFT_OUT, 0)
    if count:
        terminalreporter.write_line(
            f"{count} browser tests of the report were left out: no Chromium found. "
            f"Install one, or name it in {chromium.VARIABLE}.",
            yellow=True,
        )
