"""The course of a run: declare everything, execute it, hold what was stored against what was declared, report.

Each step only uses what the step before put on disk, so a run that was killed anywhere goes on from there.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.console import Console

import harness
from harness.baselines import inputs_digest
from harness.comparison.sides import Revisions, Side
from harness.errors import HarnessFault, UsageError
from harness.execution.local import LocalExecutor
from harness.execution.resume import resume, resume_key
from harness.execution.slots import slots_of
from harness.filters import Filters, narrow
from harness.plan import SERVING, Plan, make_plan
from harness.plugins import find_engine, registered_engines, replaced_probes
from harness.profiles import load_profile
from harness.progress import progress
from harness.records import Fate, GateResult, RunHeader
from harness.revision import engine_and_harness
from harness.selftest.latest import latest_sentence
from harness.soundness import plain
from harness.sources import source_digest
from harness.standing import Standing, baseline_gates, find_baseline, hold_against
from harness.store import RunData, RunStore, load_run, recorded_units
from harness.verdicts import added_gates, conclude
from harness.waivers import load_waivers

CHECKOUT = Path(harness.__file__).resolve().parents[1]
CODE = (CHECKOUT / "harness", CHECKOUT / "atom_impl")  # `harness.export.asv_results` finds a commit by their digest
REPORT = "report.html"
#: A compared cell: its gates, and the fate and reason of a side that failed.
Timed = tuple[list[GateResult], tuple[Fate, str] | None]


@dataclass(frozen=True)
class Order:
    """What the command line asked for."""

    profile: str
    filters: Filters
    device: str | None = None
    results: Path = Path("results")
    fresh: bool = False
    command: tuple[str, ...] = ()
    use_baseline: bool = True
    revisions: Revisions | None = None

    @property
    def runs(self) -> Path:
        return self.results / "runs"


def plan_of(order: Order) -> Plan:
    """Everything that can be wrong with an order is raised here, before anything starts."""
    from harness.doctor import choose_device

    profile = narrow(load_profile(order.profile), order.filters)
    try:
        for name in profile.axes.engine:
            find_engine(name)
    except ValueError as error:
        raise UsageError(str(error)) from error
    return make_plan(profile, choose_device(order.device), find_engine)


def prepare(plan: Plan) -> None:
    """Let each engine fetch and check the weights of each model once, where it has a `prepare(cell)`.

    Weights that are missing, cut short or other than asked for end the command here: they are not twenty crashed cells.
    """
    seen: set[tuple[str, str]] = set()
    for unit in plan.units:
        engine, model = str(unit.cell["engine"]), str(unit.cell["model"])
        ready = None if (engine, model) in seen else getattr(find_engine(engine), "prepare", None)
        seen.add((engine, model))
        if ready is None:
            continue
        try:
            ready(unit.cell)
        except Exception as error:
            raise UsageError(f"model {model!r} cannot be used: {error}") from error


def declare(order: Order, plan: Plan, kind: str, sides: Mapping[str, Side] | None = None) -> RunHeader:
    """The header of a new run: what will be held against the records at the end."""
    from harness import machine

    fingerprint = machine.fingerprint()
    profile, filters = plan.profile, order.filters.named()
    versions = {name: dict(find_engine(name).versions()) for name in profile.axes.engine}
    code = {"sources": source_digest(CODE), "versions": versions, "registered": registered_engines()}
    records = {side.name: side.record() for side in (sides or {}).values()}
    code |= {"sides": records} if records else {}
    of_engine, of_harness = engine_and_harness(CHECKOUT, CODE[-1].name)
    started = datetime.now(UTC)
    return RunHeader(
        run=f"{started:%Y%m%dT%H%M%SZ}-{profile.name}-{secrets.token_hex(2)}",
        profile=profile.name,
        profile_hash=profile.digest(),
        command=list(order.command),
        started=started.isoformat(timespec="seconds"),
        cells=[cell.id for cell in plan.cells],
        units=[unit.id for unit in plan.units],
        declared=dict(plan.declared),
        device=plan.device,
        fingerprint=plain(fingerprint),
        engine_revision=plain({**of_engine, **code}),
        harness_revision=plain(of_harness),
        kind=kind,
        filters=filters,
        resume_key=resume_key(
            profile_hash=profile.digest(),
            filters=filters,
            code=plain(code),
            device=plan.device,
            series=machine.series_key(fingerprint, plan.device),
        ),
        holes=plan.holes,
        profile_text=msgspec.to_builtins(profile),
        probes=replaced_probes(),
        series=machine.series_key(fingerprint, plan.device),
        inputs=inputs_digest(profile),
        sides=records,
    )


class Run:
    """One run being written: new, or resumed where a run of the same declaration was left unfinished."""

    def __init__(self, order: Order, plan: Plan, kind: str, say: Callable[[str], None]) -> None:
        self.order, self.plan, self.say, self.started = order, plan, say, time.monotonic()
        self.sides = _sides(order)
        header = declare(order, plan, kind, self.sides)
        resumed, notes = (None, []) if order.fresh else resume(order.runs, header)
        for note in notes:
            say(note)
        if resumed is not None:
            say(str(resumed))
            self.store, self.before = resumed.store, recorded_units(resumed.run)
        else:
            self.store, self.before = RunStore.create(order.runs, header), set()
            say(f"run {header.run}: {len(header.units)} units of {len(header.cells)} cells on {header.device}")
        self.folder = self.store.folder
        self.executed = len(self.before)

    def execute(self, console: Console) -> None:
        """Execute what is not recorded yet. Every record is on disk before the next unit ends."""
        missing = [unit for unit in self.plan.units if unit.id not in self.before]
        with progress(console, len(self.plan.units), len(self.before)) as show:
            side = next((side for side in self.sides.values() if side.name == "candidate"), None)
            logs = self.folder / "logs"
            device = self.plan.device
            executor = LocalExecutor(
                self.plan.profile, device, logs, self.store.append, show, side, slots_of(device), show.note
            )
            executor.run(missing)
        self.executed += executor.executed

    def conclude(self) -> RunData:
        """Append the verdict over what is really on disk, and read the whole run back."""
        standing = self._stand()
        verdict = conclude(
            load_run(self.folder),
            standing=standing,
            executed=self.executed,
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
            seconds=round(time.monotonic() - self.started, 1),
        )
        self.store.append(verdict)
        return load_run(self.folder)

    def _stand(self) -> Standing:
        """Hold the run against its baseline, if there is one and it is wanted, and record what that decides."""
        results, run = self.order.results, load_run(self.folder, added=False)
        standing, baseline = Standing(waivers=load_waivers(results)), None
        standing = standing.add(notes=[latest_sentence(results, run.header.series)])
        if self.order.use_baseline:
            baseline, missing = find_baseline(run.header, results)
            standing = hold_against(baseline, run.header, standing) if baseline else standing.add(notes=[missing])
        else:
            standing = standing.add(notes=["--no-baseline: an accepted baseline was not looked for."])
        timed: Mapping[str, Timed] = {}
        if self.sides:
            from harness.comparison.compare import time_revisions

            timed, standing = time_revisions(self.plan, self.sides, self.store, self.say, standing)
        for lane in run.lanes:
            first = lane.launch == 0  # the later ones count and time nothing
            accepted = baseline_gates(lane, run.header, baseline) if baseline and first else []
            gates, failure = timed.get(lane.cell, ([], None)) if lane.lane == SERVING and first else ([], None)
            if accepted or gates or failure:
                self.store.append(added_gates(lane, [*accepted, *gates], failure))
        return standing

    def interrupted(self) -> str:
        """What to tell whoever stopped the run; the page says for itself that it is incomplete."""
        run = load_run(self.folder)
        done, total = len(recorded_units(run)), len(run.header.units)
        text = f"interrupted: {done} of {total} units of {run.header.run} are recorded; the same command resumes it"
        if run.header.kind != "signoff":
            return text
        with suppress(HarnessFault):
            text += f"\nincomplete report: {self.report()}"
        return text

    def report(self) -> Path:
        return write_reports(self.folder)


def _sides(order: Order) -> dict[str, Side]:
    """Both sides of the comparison that a sign-off was asked to make; none without one."""
    if order.revisions is None:
        return {}
    from harness.comparison.compare import sides_of

    sides = sides_of(order.revisions, order.runs)
    for side in sides.values():
        if side.name == "candidate" and side.missing:
            raise UsageError(f"candidate {side}: {side.missing}, so there is nothing to sign off")
    return sides


def write_reports(folder: Path) -> Path:
    """Write the page, and Markdown and JUnit for a CI; a fault in them is the harness's, and costs no record."""
    from harness.report.html import write_html
    from harness.report.junit import write_junit
    from harness.report.markdown import write_markdown

    path, run = folder / REPORT, load_run(folder)
    try:
        write_html(run, path)
        write_markdown(run, path.with_suffix(".md"))
        write_junit(run, path.with_name("junit.xml"))
    except Exception as error:
        kind = type(error).__name__
        raise HarnessFault(f"the report could not be written ({kind}: {error}); the records are kept") from error
    return path
