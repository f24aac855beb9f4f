"""The table of planted faults: what was planted, which gate saw it, what it said, and that the control was silent.

"All caught" without the messages hides a check that fires for the wrong reason, and without the gates that caught
nothing it hides a check that never fires at all.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.mutants.kinds import KINDS, NOT_YET
from harness.mutants.runner import Outcome, State

HEADINGS = ("kind", "variant", "result", "gate", "message", "s", "control")


def rows(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """One row of text for each mutant, in the order of `HEADINGS`."""
    return [_row(outcome) for outcome in outcomes]


def summary(outcomes: Sequence[Outcome]) -> list[str]:
    """Counts, the kinds that are missing, and the gates that saw nothing, one line each."""
    caught = {o.mutant.kind for o in outcomes if o.state is State.CAUGHT}
    count = sum(o.state is State.CAUGHT for o in outcomes)
    silent = sum(o.alarm is None and o.state is not State.BROKEN for o in outcomes)
    lines = [
        f"{len(caught)} of {len(KINDS)} kinds caught; {count} of {len(outcomes)} planted faults caught, "
        f"{silent} of {len(outcomes)} controls silent."
    ]
    lines += [f"{o.state.value}: {o.mutant.name}. {_why(o)}" for o in outcomes if o.state is not State.CAUGHT]
    lines += [f"not yet: {name}. {reason}." for name, reason in NOT_YET.items()]
    missing = [kind for kind in KINDS if kind not in {o.mutant.kind for o in outcomes} and kind not in NOT_YET]
    lines += [f"not planted here: {', '.join(missing)}."] if missing else []
    idle = idle_gates(outcomes)
    lines += [f"judged here and failed by no mutant of these: {', '.join(idle)}."] if idle else []
    return lines


def idle_gates(outcomes: Sequence[Outcome]) -> list[str]:
    """Gates that judged something and failed for no mutant: nothing shows that they can."""
    seen: dict[str, bool] = {}
    for outcome in outcomes:
        for gate, failed in outcome.gates.items():
            seen[gate] = seen.get(gate, False) or failed
    return sorted(gate for gate, failed in seen.items() if not failed)


def markdown(outcomes: Sequence[Outcome], where: str) -> str:
    """The whole table as a page for the documentation. `where` says on what it was run."""
    head = f"# Planted faults\n\n{where}\n\n"
    table = ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    table += ["| " + " | ".join(_cell(text) for text in row) + " |" for row in rows(outcomes)]
    said = ["", "## What a reader learns from the message", ""]
    said += [f"- {o.mutant.name}: {o.mutant.says} Control: {o.mutant.control_is}" for o in outcomes]
    return head + "\n".join([*table, *said, "", *[f"- {line}" for line in summary(outcomes)]]) + "\n"


def _row(outcome: Outcome) -> tuple[str, ...]:
    mutant, finding = outcome.mutant, outcome.finding
    variant = f"{mutant.variant} (simulated)" if mutant.simulated else mutant.variant
    gate = finding.name if finding else "-"
    more = f" (+{len(outcome.others)})" if outcome.others else ""
    control = "silent" if outcome.alarm is None else f"{outcome.alarm.name}: {outcome.alarm.message}"
    message = finding.message if finding else mutant.survives
    return (
        mutant.kind,
        variant,
        outcome.state.value,
        gate + more,
        message,
        f"{outcome.seconds:.0f}",
        control if outcome.state is not State.BROKEN else "-",
    )


def _why(outcome: Outcome) -> str:
    match outcome.state:
        case State.KNOWN:
            return outcome.mutant.survives
        case State.SEEN:
            return "It is declared to survive: drop `survives` and name the gate."
        case State.ALARM if outcome.alarm is not None:
            return f"The control fired {outcome.alarm.name}: {outcome.alarm.message}"
        case State.IDLE:
            return "The control's changed code never ran."
        case State.SURVIVED:
            return f"None of {', '.join(outcome.mutant.caught_by)} failed."
    return f"{outcome.finding.name}: {outcome.finding.message}" if outcome.finding else ""


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
