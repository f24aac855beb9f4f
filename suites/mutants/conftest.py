"""Say what the planted faults of a test run took: four minutes on two cores are promised, and nobody looked."""

from __future__ import annotations

from typing import Any

import pytest

TARGET_S = 240.0


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports: list[pytest.TestReport] = [
        report
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, ())
        if report.when == "call" and any(name == "planted" for name, _ in report.user_properties)
    ]
    if reports:
        span_s = max(report.stop for report in reports) - min(report.start for report in reports)
        caught = sum(report.passed for report in reports)
        took = f"{span_s:.0f} s (target {TARGET_S:.0f} s on two cores)"
        terminalreporter.write_line(f"planted faults: {caught} of {len(reports)} caught in {took}")
