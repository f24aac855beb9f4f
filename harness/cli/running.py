"""What measuring commands do before and around the work: plan, check the machine, fetch weights, execute, judge."""

from __future__ import annotations

from rich.console import Console

from harness import errors
from harness.cli.ending import console, say
from harness.plan import Plan
from harness.signoff import Order, Run, plan_of, prepare
from harness.store import RunData, ensure_writable, load_run


def ready(order: Order) -> Plan:
    """The plan of an order that this machine can carry out, with the weights at hand."""
    ensure_writable(order.runs)
    plan = plan_of(order)
    refuse_unfit(plan, order)
    prepare(plan)
    return plan


def execute(order: Order, kind: str, shown: Console | None = None) -> tuple[Run, RunData]:
    """Plan, check the machine, execute; a sign-off is judged while the run is still locked."""
    shown = shown or console()
    current = Run(order, ready(order), kind, say)
    with current.store:
        try:
            current.execute(shown)
        except KeyboardInterrupt:
            raise errors.IncompleteError(current.interrupted()) from None
        return current, current.conclude() if kind == "signoff" else load_run(current.folder)


def refuse_unfit(plan: Plan, order: Order) -> None:
    """Raise `UnfitError` where the machine cannot give the evidence; say what is merely worth knowing."""
    from harness.doctor import diagnose

    findings = [finding for finding in diagnose(plan.device, results=order.results) if not finding.ok]
    unfit = [f"{f.message} {f.way_out}".strip() for f in findings if f.severity == "unfit"]
    if unfit:
        raise errors.UnfitError("\n".join(unfit))
    for finding in findings:
        say(f"{finding.severity}: {finding.message} {finding.way_out}".rstrip())
