"""A record that never reaches the disk: missing data must not read as success."""

from typing import Any

from harness.mutants import Mutant, Where, wrap
from harness.records import LaneRecord
from harness.store import RunStore


def lossy(append: Any, self: Any, line: Any) -> None:
    if not isinstance(line, LaneRecord):
        append(self, line)


def faithful(append: Any, self: Any, line: Any) -> None:
    append(self, line)


MUTANT = Mutant(
    kind="HARNESS",
    variant="record lost",
    changes="the store drops every record of a lane",
    control_is="every record is written through one more call.",
    caught_by=("not-run",),
    says="The cell and the lane of which there is no record.",
    plant=lambda: wrap(RunStore, "append", lossy),
    control=lambda: wrap(RunStore, "append", faithful),
    where=Where.COMMAND,
    quick=True,
)
