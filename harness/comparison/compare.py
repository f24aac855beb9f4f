"""`harness compare`: declare, run the course, and end in the same records, verdict and report as a sign-off."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from harness.comparison.course import Course
from harness.comparison.gates import cell_gates, lane_record
from harness.comparison.looks import LookPlan
from harness.comparison.paired import Budget
from harness.comparison.pairs import BASELINE, CANDIDATE
from harness.comparison.sides import AS_IT_STANDS, Revisions, Side, make_side
from harness.errors import UsageError
from harness.execution.locks import any_of
from harness.execution.resume import resume
from harness.execution.slots import bound_to, slots_of
from harness.plan import SERVING, Plan, kind_of
from harness.profile import Profile
from harness.records import Fate, RunHeader
from harness.signoff import CHECKOUT, Order, Timed, declare, write_reports
from harness.standing import Standing
from harness.store import RunData, RunStore, load_run, recorded_units
from harness.verdicts import conclude
from harness.waivers import load_waivers

ENGINES_FOLDER = ".engines"  # below the runs, which git ignores


def rules_of(profile: Profile, device: str) -> tuple[LookPlan, Budget]:
    """The looks and the budget that the profile states. Raises `UsageError` for a rule that it breaks."""
    try:
        plan = LookPlan(tuple(profile.comparison.pairs), profile.comparison.alpha)
        return plan, Budget(profile.budget.step_time[kind_of(device)])
    except KeyError:
        raise UsageError(f"profile {profile.name!r} states no budget.step_time for {kind_of(device)!r}") from None
    except ValueError as error:
        raise UsageError(f"profile {profile.name!r}, comparison: {error}") from error


def sides_of(wanted: Revisions, runs: Path) -> dict[str, Side]:
    folder = runs / ENGINES_FOLDER
    return {
        BASELINE: make_side("baseline", wanted.baseline, wanted.baseline_python, CHECKOUT, folder),
        CANDIDATE: make_side("candidate", wanted.candidate, wanted.candidate_python, CHECKOUT, folder),
    }


@contextmanager
def reserved(plan: Plan, say: Callable[[str], None]) -> Iterator[Plan]:
    """The plan on one GPU that nobody else of the harness uses meanwhile, with both sides on the CPUs beside it."""
    with any_of(slots_of(plan.device), say) as slot, bound_to(slot):
        yield dataclasses.replace(plan, device=slot.as_seen_here)


def course_of(plan: Plan, sides: dict[str, Side], store: RunStore, say: Callable[[str], None]) -> Course:
    """The comparison of the plan's serving units; its pairs go into `store`."""
    looks, budget = rules_of(plan.profile, plan.device)
    return Course(
        profile=plan.profile,
        device=plan.device,
        sides=sides,
        units=[unit for unit in plan.units if unit.lane == SERVING],
        checkout=CHECKOUT,
        logs=store.folder / "logs",
        keep=store.append,
        say=say,
        plan=looks,
        budget=budget,
    )


def compare(order: Order, plan: Plan, wanted: Revisions, say: Callable[[str], None]) -> RunData:
    """Compare the profile's cells, serving lane, arm R. Every pair is on disk before the next begins."""
    began = time.monotonic()
    rules_of(plan.profile, plan.device)
    timed = dataclasses.replace(plan, units=tuple(unit for unit in plan.units if unit.lane == SERVING))
    sides = sides_of(wanted, order.runs)
    store, earlier = _open_run(order, _header(declare(order, timed, "compare", sides), sides), say)
    with store, reserved(timed, say) as timed:
        course = course_of(timed, sides, store, say)
        course.restore(earlier.pairs)
        say(f"run {store.folder.name}: {sides[BASELINE]} against {sides[CANDIDATE]}, {len(timed.units)} cells")
        final = course.run()
        pairs = load_run(store.folder).pairs
        recorded = recorded_units(earlier)  # a kill between the records and the verdict
        for cell in course.cells.values():
            if cell.unit.id not in recorded:
                store.append(lane_record(cell, course, final, pairs))
        standing = compared(course, Standing(waivers=load_waivers(order.results)))
        verdict = conclude(
            load_run(store.folder),
            executed=len(course.cells),
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
            seconds=round(time.monotonic() - began, 1),
            standing=standing.add(notes=["Numerics and exact counts were not measured: `harness signoff` gates them."]),
        )
        store.append(verdict)
        return load_run(store.folder)


def compare_and_report(order: Order, plan: Plan, wanted: Revisions, say: Callable[[str], None]) -> tuple[RunData, Path]:
    data = compare(order, plan, wanted, say)
    assert data.path is not None
    return data, write_reports(data.path)


def _open_run(order: Order, header: RunHeader, say: Callable[[str], None]) -> tuple[RunStore, RunData]:
    """A new run, or the one of the same comparison that was left unfinished, with what it holds."""
    resumed, notes = (None, []) if order.fresh else resume(order.runs, header)
    for note in notes:
        say(note)
    if resumed is None:
        store = RunStore.create(order.runs, header)
        return store, load_run(store.folder)
    say(f"resuming {resumed.run.header.run}: {len(resumed.run.pairs)} pairs of items are recorded")
    return resumed.store, resumed.run


def _header(declared: RunHeader, sides: dict[str, Side]) -> RunHeader:
    """The header with both sides. The engine under test is the candidate."""
    candidate = sides[CANDIDATE]
    engine = {**declared.engine_revision, "commit": candidate.commit, "sources": candidate.code}
    if candidate.revision != AS_IT_STANDS:
        engine |= {"dirty": "no", "dirty_digest": ""}
    records = {side.name: side.record() for side in sides.values()}
    return msgspec.structs.replace(declared, engine_revision=engine, sides=records)


def time_revisions(
    plan: Plan, sides: dict[str, Side], store: RunStore, say: Callable[[str], None], standing: Standing
) -> tuple[dict[str, Timed], Standing]:
    """The comparison within a sign-off: by cell, its gates, and what a side that failed means for it."""
    with reserved(plan, say) as here:
        course = course_of(here, sides, store, say)
        course.restore(load_run(store.folder).pairs)
        final = course.run()
    timed: dict[str, Timed] = {}
    for name, cell in course.cells.items():
        failure = cell.failure
        # A baseline that cannot run says nothing against the candidate, and nothing for it.
        fate = Fate.INCONCLUSIVE if failure and failure.side.name == "baseline" else failure and failure.fate
        timed[name] = (cell_gates(cell, course, final), (fate, str(failure)) if failure and fate else None)
    return timed, compared(course, standing)


def compared(course: Course, standing: Standing) -> Standing:
    """The standing with what the comparison gates, and with the cells that it could not compare."""
    unmeasured = [cell for cell in course.cells.values() if cell.failure and cell.failure.fate is Fate.UNSUPPORTED]
    problems = [f"{len(unmeasured)} cells were not compared: {unmeasured[0].failure}."] if unmeasured else []
    looks = ", ".join(map(str, course.plan.pairs))
    text = (
        f"{course.sides[BASELINE]}, paired in this session with {course.sides[CANDIDATE]}; gated: step time of arm R "
        f"within {100 * course.budget.change:g} %, looks at {looks} pairs, alpha {course.plan.alpha:g} over all"
    )
    return standing.add(baseline=text, problems=problems)
