"""A run as JUnit XML, for the systems that read nothing else: one test case a cell, and one for the verdict itself.

A suite file without its crashed tests counts as green. Every declared cell is a test case here, what nobody measured is
an error, and the verdict is a test case too, so that a run that stopped half-way or contradicts itself is red.
"""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as xml

from harness.errors import PASS
from harness.records import Fate
from harness.report.fates import FATE_MEANINGS, gate_title
from harness.report.figures import clean, figure, flat
from harness.report.files import write_text
from harness.report.summary import Summary, cell_command, gate_sentence
from harness.report.text import accounting_line, baseline_line
from harness.report.view import CellView, GateView
from harness.store import RunData

#: Fates that say nothing about the engine's answers: the evidence is missing.
_ERRORS = (Fate.CRASHED, Fate.HUNG, Fate.TEARDOWN_CRASHED, Fate.UNFIT, Fate.NOT_RUN)
#: Never counted as passed, and not a failure either.
_SKIPPED = (Fate.UNSUPPORTED, Fate.WAIVED)


def write_junit(run: RunData, path: Path) -> None:
    """Write the test suite to `path`, whole or not at all. Raises `UsageError` if the folder cannot be written."""
    write_text(path, render_junit(run))


def render_junit(run: RunData) -> str:
    summary = Summary.of(run)
    cases = [_cell_case(summary, cell) for cell in summary.cells] + [_verdict_case(summary)]
    seconds = run.verdict.seconds if run.verdict else sum(lane.seconds for lane in run.lanes)
    suite = xml.Element(
        "testsuite",
        name=clean(f"signoff.{run.header.profile}"),
        tests=str(len(cases)),
        failures=str(_count(cases, "failure")),
        errors=str(_count(cases, "error")),
        skipped=str(_count(cases, "skipped")),
        time=f"{seconds:.3f}",
        timestamp=clean(run.header.started),
    )
    _properties(suite, summary)
    suite.extend(cases)
    root = xml.Element("testsuites")
    root.append(suite)
    xml.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{xml.tostring(root, encoding="unicode")}\n'


def _count(cases: list[xml.Element], outcome: str) -> int:
    return sum(case.find(outcome) is not None for case in cases)


def _properties(suite: xml.Element, summary: Summary) -> None:
    header = summary.run.header
    facts = {
        "run": header.run,
        "device": header.device,
        "profile_hash": header.profile_hash,
        "command": summary.command,
    }
    block = xml.SubElement(suite, "properties")
    revisions = [(f"engine.{k}", v) for k, v in flat(header.engine_revision)]
    revisions += [(f"harness.{k}", v) for k, v in flat(header.harness_revision)]
    for name, value in [*facts.items(), *revisions]:
        xml.SubElement(block, "property", name=clean(name), value=clean(value))


def _cell_case(summary: Summary, cell: CellView) -> xml.Element:
    seconds = sum(lane.seconds for lane in cell.lanes)
    case = _case(f"{summary.run.header.profile}.{cell.axes['model']}", cell.id, seconds)
    reason = cell.reason or FATE_MEANINGS[cell.fate]
    if cell.doubts and cell.fate not in _ERRORS:
        _outcome(case, "failure", "contradiction", cell.doubts[0], "\n".join(cell.doubts))
    elif cell.fate in _SKIPPED:
        _outcome(case, "skipped", cell.fate.value, reason, "")
    elif cell.fate in _ERRORS:
        _outcome(case, "error", cell.fate.value, reason, _how_it_ended(cell))
    elif cell.fate is not Fate.MEASURED:
        decisive = cell.failed or cell.undecided
        _outcome(case, "failure", cell.fate.value, reason, "\n".join(_gate_line(gate) for gate in decisive))
    evidence = [_gate_line(gate) for gate in cell.gates]
    xml.SubElement(case, "system-out").text = clean("\n".join([*evidence, f"again: {cell_command(summary, cell)}"]))
    return case


def _verdict_case(summary: Summary) -> xml.Element:
    """Red whenever the exit code is not zero, whatever the cells say."""
    case = _case(summary.run.header.profile, "verdict", 0.0)
    text = "\n".join([*summary.reasons, *summary.doubts, accounting_line(summary), baseline_line(summary)])
    if not summary.complete:
        _outcome(case, "error", "incomplete", summary.title, text)
    elif summary.exit_code != PASS or summary.doubts:
        _outcome(case, "failure", f"exit code {summary.exit_code}", summary.title, text)
    xml.SubElement(case, "system-out").text = clean(text)
    return case


def _case(classname: str, name: str, seconds: float) -> xml.Element:
    return xml.Element("testcase", classname=clean(classname), name=clean(name), time=f"{seconds:.3f}")


def _outcome(case: xml.Element, tag: str, kind: str, message: str, text: str) -> None:
    xml.SubElement(case, tag, type=kind, message=clean(message)).text = clean(text)


def _how_it_ended(cell: CellView) -> str:
    parts = []
    for lane in cell.lanes:
        if lane.fate in _ERRORS:
            parts += [f"{lane.lane} lane, {lane.fate.value} in phase {lane.phase.value}: {lane.reason}"]
            parts += [text for text in (lane.stack, lane.output_tail) if text]
    parts += [f"the {lane} lane left no record" for lane in cell.missing]
    return "\n".join(parts)


def _gate_line(gate: GateView) -> str:
    result = gate.result
    figures = f" [{figure(result.measured)} against {figure(result.threshold)}]" if result.threshold is not None else ""
    where = f" ({result.where})" if result.where else ""
    return f"{gate.word} {gate_title(result.gate)}, {gate.lane} lane{figures}: {gate_sentence(result)}{where}"
