"""A night: measure, publish, look back, look again where one value stands out, and end in one exit code.

A nightly whose steps were five lines of shell was green for a week after the second one had begun to fail. Each step
here says what it did, and none of them can turn a worse exit code into a better one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from harness.errors import INCOMPLETE, UsageError, first_exit_code
from harness.export.asv_results import backfill, discover
from harness.history.changepoints import Detector
from harness.history.check import Kind, Limits, Report, check, lines
from harness.history.series import history_of_records
from harness.store import RunData, list_runs, load_run

HISTORY = "history.md"
PUBLISH_TIMEOUT_S = 1800


@dataclass
class Night:
    """`measure` runs the profile once and returns the concluded run; `again` says that a fresh run is wanted."""

    measure: Callable[[bool], RunData]
    results: Path
    checkout: Path
    limits: Limits
    detector: Detector
    say: Callable[[str], None]
    asv_results: Path | None = None  # None: publish nothing
    machine: str = ""  # asv's name of it, in place of its hardware's
    codes: list[int] = field(default_factory=list)

    def run(self) -> int:
        """The whole night; returns its exit code."""
        data = self._measure(again=False)
        report = self._look_back(data.header.profile)
        if report.of(Kind.SUSPECT):
            self.say(f"{len(report.of(Kind.SUSPECT))} figures stand out once: measuring again before anything is said")
            data = self._measure(again=True)
            report = self._look_back(data.header.profile)
        self._publish(data.header.profile)
        self._tell(report, data)
        self.codes.append(report.exit_code)
        return first_exit_code(self.codes)

    def _measure(self, again: bool) -> RunData:
        data = self.measure(again)
        self.codes.append(data.verdict.exit_code if data.verdict else INCOMPLETE)
        self.say(f"run {data.header.run}: {data.verdict.title if data.verdict else 'no verdict'}")
        return data

    def _look_back(self, profile: str) -> Report:
        history = history_of_records(self.results / "runs", self.checkout, profile)
        return check(history, self.limits, self.detector, datetime.now(UTC).date())

    def _publish(self, profile: str) -> None:
        """asv's files from the records, then its pages. What cannot be published is said and makes the night red."""
        if self.asv_results is None:
            self.say("asv: not published, as asked for or because it is not installed")
            return
        try:
            for line in publish(self.results, self.checkout, self.asv_results, profile, self.machine):
                self.say(line)
        except UsageError as error:
            self.say(f"asv: not published: {error}")
            self.codes.append(INCOMPLETE)

    def _tell(self, report: Report, data: RunData) -> None:
        text = list(lines(report))
        for line in text:
            self.say(line)
        if data.path is not None:
            page = data.path / HISTORY
            page.write_text("\n".join(["# History", "", "```", *text, "```", ""]))
            self.say(f"history: {page}")


def publish(results: Path, checkout: Path, asv_results: Path, profile: str, machine: str = "") -> Iterator[str]:
    """Backfill every stored run of `profile` and make asv's pages; yields what was done. Raises UsageError."""
    runs = [load_run(folder) for folder in list_runs(results / "runs")]
    runs = [run for run in runs if run.header.profile == profile]
    for made in backfill(runs, checkout, asv_results, discover(checkout, asv_results), machine):
        yield f"asv: {made}"
    if not any(asv_results.glob("*/*-*.json")):
        yield "asv: no results yet, so there are no pages to make"
        return
    html = _make_pages(checkout, asv_results)
    yield f"asv: pages are in {html}"


def _make_pages(checkout: Path, asv_results: Path) -> Path:
    """`asv publish` for this very folder, wherever it is: the checkout's own configuration names the usual one."""
    usual = (checkout / "results" / "asv").resolve() == asv_results.resolve()
    html = checkout / ".asv" / "html" if usual else asv_results.with_name("asv-html")
    given = json.loads((checkout / "asv.conf.json").read_text())
    places = {"repo": checkout, "benchmark_dir": checkout / given["benchmark_dir"]}
    places |= {"results_dir": asv_results, "html_dir": html}
    settings = {
        **given,
        "plugins": [],
        "environment_type": "existing",
        **{name: str(place.resolve()) for name, place in places.items()},
    }
    settings["branches"] = [name for name in given["branches"] if _is_branch(checkout, name)] or ["HEAD"]
    with tempfile.TemporaryDirectory(prefix="asv-publish-") as folder:
        config = Path(folder, "asv.conf.json")
        config.write_text(json.dumps(settings))
        command = [sys.executable, "-m", "asv", "--config", str(config), "publish", "--no-pull"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PUBLISH_TIMEOUT_S)
    if done.returncode:
        raise UsageError(f"`asv publish` ended with {done.returncode}: {(done.stderr + done.stdout).strip()[-800:]}")
    return html


def _is_branch(checkout: Path, name: str) -> bool:
    command = ["git", "-C", str(checkout), "rev-parse", "--verify", "--quiet", name]
    return subprocess.run(command, capture_output=True).returncode == 0
