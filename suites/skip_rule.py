"""Nothing skipped counts as passed.

A suite whose import failed on the GPU machine skipped all of itself, and the night was green. Here a skip, or an
expected failure, that `declared_skips.toml` does not declare with a reason is a failure; the declared ones are counted.
"""

from __future__ import annotations

import tomllib
from collections.abc import Generator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

DECLARED = "declared_skips.toml"
REFUSED = "what is skipped has not passed"


def read_declared(path: Path) -> dict[str, str]:
    """Test id pattern -> reason. Raises pytest.UsageError for an entry that lacks either."""
    entries = tomllib.loads(path.read_text()).get("skip", [])
    for entry in entries:
        if set(entry) != {"test", "reason"} or not all(str(value).strip() for value in entry.values()):
            raise pytest.UsageError(f"{path.name}: {entry} must have `test`, a test id or pattern, and `reason`")
    return {entry["test"]: entry["reason"] for entry in entries}


class SkipRule:
    """Turns undeclared skips into failures, of tests and of whole modules alike. `declared` is pattern -> reason."""

    def __init__(self, declared: Mapping[str, str]) -> None:
        self._declared = declared

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        self._judge(report)
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        self._judge(report)
        return report

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Counted from the reports, which come together in one process however many run the tests."""
        stats = terminalreporter.stats
        declared = len(stats.get("skipped", []))
        failures = [*stats.get("failed", []), *stats.get("error", [])]
        refused = sum(REFUSED in str(report.longrepr) for report in failures)
        terminalreporter.write_line(f"skipped: {declared} declared, {refused} undeclared and therefore failed")

    def _judge(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if not report.skipped:
            return
        if any(fnmatchcase(report.nodeid, pattern) for pattern in self._declared):
            return
        report.outcome = "failed"
        report.longrepr = (
            f"{report.nodeid} was skipped ({_reason(report)}), and {REFUSED}. Make it run, "
            f"or declare it with a reason in suites/{DECLARED}."
        )
        if hasattr(report, "wasxfail"):
            del report.wasxfail


def _reason(report: Any) -> str:
    if hasattr(report, "wasxfail"):
        return f"expected to fail: {report.wasxfail or 'no reason given'}"
    place = report.longrepr
    return str(place[2]).removeprefix("Skipped: ") if isinstance(place, tuple) else str(place)
