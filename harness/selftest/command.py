"""The command around the self-test: prints every line as it is known, and keeps the whole beside the results.

What is kept is written again after every round, so that hours of trials that end by a kill still bound something.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from harness import machine
from harness.comparison.compare import reserved
from harness.errors import IncompleteError
from harness.plan import Plan
from harness.report.files import write_text
from harness.selftest.journal import Journal
from harness.selftest.latest import latest_file
from harness.selftest.suite import HOURS, MINUTES, Effort, Line, SelfTest, as_record
from harness.signoff import CHECKOUT, CODE
from harness.sources import source_digest


def run_selftest(plan: Plan, results: Path, *, full: bool, say: Callable[[str], None]) -> bool:
    """Run it or go on with it, print it, keep it. True if there was neither a false alarm nor a miss."""
    effort = HOURS if full else MINUTES
    fingerprint = machine.fingerprint()
    file = latest_file(results, machine.series_key(fingerprint, plan.device))
    code = source_digest(CODE)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    journal = Journal(results / "runs" / f".selftest-{file.stem}.jsonl", _key(plan, effort, code), now)
    if journal.pieces:
        say(f"going on with the self-test that began at {journal.begun}")
    revision, software = machine.revision(CHECKOUT), fingerprint["software"]

    def keep(lines: Sequence[Line], complete: bool) -> None:
        facts = {
            "begun": journal.begun,
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "complete": complete,
            "device": plan.device,
            "models": sorted({str(unit.cell["model"]) for unit in plan.units}),
            "sources": code,
            "revision": revision,
            "software": software,
        }
        write_text(file, as_record(lines, effort, facts).decode())

    logs = results / "runs" / f".selftest-{journal.begun.replace(':', '')}"
    test = SelfTest(plan, effort, CHECKOUT, logs, say, journal, lambda lines: keep(lines, False))
    lines: list[Line] = []
    try:
        with reserved(plan, say) as test.plan:
            for line in test.run():
                say(str(line))
                lines.append(line)
    except KeyboardInterrupt:
        for line in test.lines():
            say(str(line))
        text = f"interrupted: what was counted is kept in {file}; the same command goes on with it"
        raise IncompleteError(text) from None
    keep(lines, True)
    journal.finish()
    say(f"kept in {file}")
    return all(line.ok for line in lines)


def _key(plan: Plan, effort: Effort, code: str) -> str:
    """Equal for two commands whose counts are of one thing."""
    facts = [plan.profile.digest(), plan.device, code, msgspec.to_builtins(effort)]
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:16]
