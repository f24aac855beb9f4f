"""The command around the self-test: prints every line as it is known, and keeps the whole beside the results."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from harness import machine
from harness.plan import Plan
from harness.report.files import write_text
from harness.selftest.latest import latest_file
from harness.selftest.suite import HOURS, MINUTES, Line, SelfTest, as_record
from harness.signoff import CHECKOUT


def run_selftest(plan: Plan, results: Path, *, full: bool, say: Callable[[str], None]) -> bool:
    """Run it, print it, keep it. True if there was neither a false alarm nor a miss."""
    effort = HOURS if full else MINUTES
    begun = datetime.now(UTC)
    logs = results / "runs" / f".selftest-{begun:%Y%m%dT%H%M%SZ}"
    lines: list[Line] = []
    for line in SelfTest(plan, effort, CHECKOUT, logs, say).run():
        say(str(line))
        lines.append(line)
    fingerprint = machine.fingerprint()
    facts = {
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round((datetime.now(UTC) - begun).total_seconds(), 1),
        "device": plan.device,
        "revision": machine.revision(CHECKOUT),
        "software": fingerprint["software"],
    }
    file = latest_file(results, machine.series_key(fingerprint, plan.device))
    write_text(file, as_record(lines, effort, facts).decode())
    say(f"kept in {file}")
    return all(line.ok for line in lines)
