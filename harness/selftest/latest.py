"""The self-test that a sign-off carries: what is known of the instrument that gave the verdict."""

from __future__ import annotations

from pathlib import Path

import msgspec

FOLDER = "selftest"


class _Line(msgspec.Struct):
    name: str
    hits: int
    trials: int
    wanted: str
    high: float


class _Kept(msgspec.Struct):
    finished: str
    lines: list[_Line]
    complete: bool = True


def latest_file(results: Path, series: str) -> Path:
    """Where the latest self-test of this kind of machine is kept."""
    return results / FOLDER / f"{series}.json"


def latest_sentence(results: Path, series: str) -> str:
    """One sentence for a verdict's reasons; it says so where no self-test is kept or it cannot be read."""
    file = latest_file(results, series)
    try:
        kept = msgspec.json.decode(file.read_bytes(), type=_Kept)
    except FileNotFoundError:
        return "No self-test of this kind of machine is kept, so its false alarms are not known: `harness selftest`."
    except (OSError, msgspec.DecodeError) as error:
        return f"The kept self-test cannot be read ({error}): run `harness selftest` again."
    same = next((line for line in kept.lines if line.name.startswith("identical code")), None)
    bad = [line.name for line in kept.lines if line.wanted == "none" and line.hits]
    bad += [line.name for line in kept.lines if line.wanted == "all" and line.hits < line.trials]
    alarms = f"{same.hits} of {same.trials} false alarms (below {100 * same.high:.1f} %)" if same else "no A/A verdicts"
    ending = f"; NOT clean: {', '.join(bad)}" if bad else ", every planted fault found"
    stopped = "" if kept.complete else " (stopped before its end)"
    return f"Self-test of {kept.finished[:10]}{stopped}: {alarms}{ending}."
