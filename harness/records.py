"""What is kept of a run: versioned, frozen structs, one JSON object a line, append-only.

The schema is a contract with everyone who reads results later. Fields are added with defaults and never change meaning.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec

SCHEMA_VERSION = 1
#: Bumped when a measurement means something else than before; figures of two protocols are never compared.
PROTOCOL_VERSION = "2"  # 2: what the timer reads of nothing is subtracted, blocks on a disturbed machine run again


class Phase(str, Enum):
    """What a worker was doing; the last one reported says where a crash or a hang happened."""

    START = "start"
    IMPORT = "import"
    BUILD = "build"
    COMPILE = "compile"
    WARMUP = "warm-up"
    CAPTURE = "capture"
    REPLAY = "replay"
    TIMING = "timing"
    TEARDOWN = "teardown"


class Status(str, Enum):
    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    REPORT = "report"  # a figure that gates nothing
    NOT_APPLICABLE = "not-applicable"  # the gate says why in `message`


class Fate(str, Enum):
    """The fates in their order of precedence: a cell has the first that holds."""

    WRONG = "wrong"
    CRASHED = "crashed"
    HUNG = "hung"
    TEARDOWN_CRASHED = "teardown-crashed"
    DOWNGRADED = "downgraded"
    SLOWER = "slower"
    COST_CHANGED = "cost-changed"
    INCONCLUSIVE = "inconclusive"
    FASTER = "faster"
    WAIVED = "waived"
    MEASURED = "measured"
    UNSUPPORTED = "unsupported"
    UNFIT = "unfit"
    NOT_RUN = "not-run"


class GateResult(msgspec.Struct, frozen=True, kw_only=True):
    """One gate of `measurement.md` or one exact counter, with the evidence that decided it.

    `where` names the first wrong point as far as it is known: arm, step, bucket, row, tensor.
    """

    gate: str  # "G0" .. "G7", "counter.segments", "closed.copies", ...
    status: Status
    message: str  # one sentence a stranger understands
    measured: float | None = None
    threshold: float | None = None
    where: str = ""
    evidence: dict[str, Any] = {}


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Microseconds of one arm at one bucket: every sample in order, with its median and quartiles."""

    arm: str
    phase: str
    batch: int
    bucket: int
    median_us: float
    p25_us: float
    p75_us: float
    samples_us: list[float]


class CompilerLog(msgspec.Struct, frozen=True, kw_only=True):
    """What torch's compiler said of a lane in which something failed. Texts are cut and the first ones kept."""

    folder: str  # relative to the run's folder: graphs, guards and generated code as files
    graph_breaks: list[str] = []
    recompiles: list[str] = []  # the guards that failed
    failures: list[str] = []
    phases: dict[str, int] = {}  # how many events in each phase
    events: dict[str, int] = {}  # how many files of each kind
    counters: dict[str, int] = {}  # Dynamo's own
    files: list[str] = []  # the last ones; the folder has them all
    left_out: int = 0  # events beyond the folder's size


class LaneRecord(msgspec.Struct, frozen=True, kw_only=True, tag="lane"):
    """One cell in one dtype, run in one worker process. A cell is whole when all its lanes are in."""

    schema: int = SCHEMA_VERSION
    protocol: str = PROTOCOL_VERSION
    cell: str  # Cell.id
    axes: dict[str, Any]
    lane: str  # "serving" or "float32"
    dtype: str
    fate: Fate  # MEASURED, WRONG, CRASHED, HUNG, TEARDOWN_CRASHED, DOWNGRADED, COST_CHANGED, UNSUPPORTED
    phase: Phase
    gates: list[GateResult] = []
    latency: list[Latency] = []
    counters: dict[str, Any] = {}
    capture: dict[str, Any] = {}
    artefacts: dict[str, str] = {}
    reason: str = ""
    output_tail: str = ""
    stack: str = ""
    started: str = ""  # ISO 8601, UTC
    seconds: float = 0.0
    phase_seconds: dict[str, float] = {}
    peak_rss_mib: float = 0.0
    worker: int = 0  # process id
    launch: int = 0  # of the same cell and lane, in a fresh process each
    slot: str = ""  # "cpu" or the PCI address of the GPU that ran it
    numa_node: int | None = None  # whose CPUs the worker was kept on; None where nobody knows it
    compiler: CompilerLog | None = None


class RunHeader(msgspec.Struct, frozen=True, kw_only=True, tag="run"):
    """The first line of a run: what was declared, on which machine, from which code."""

    schema: int = SCHEMA_VERSION
    protocol: str = PROTOCOL_VERSION
    run: str
    profile: str
    profile_hash: str
    command: list[str]
    started: str
    cells: list[str]  # every declared cell's id, in plan order
    units: list[str]  # every (cell, lane) to execute: "<cell>#<lane>" or "<cell>#<lane>/<launch>"
    declared: dict[str, str]  # cell id -> why it is declared and not executed
    device: str
    fingerprint: dict[str, Any]
    engine_revision: dict[str, Any]  # commit, dirty digest, versions
    harness_revision: dict[str, Any]
    kind: str = "signoff"  # the command that may resume it: "run" or "signoff"
    filters: dict[str, list[str]] = {}  # the axes that the command line narrowed
    resume_key: str = ""  # equal keys: the same declaration, code, device and kind of machine
    holes: dict[str, str] = {}  # cell id -> sizes that its ladder leaves without a bucket or a stated policy
    profile_text: dict[str, Any] = {}  # the profile as it was used, whole
    probes: str = ""  # set when something else than the harness's own probes measured
    series: str = ""  # machines whose timings may be compared share it
    inputs: str = ""  # equal for two runs whose models were fed the same
    sides: dict[str, Any] = {}  # of a comparison: "baseline" and "candidate", each with what code and interpreter it is


class AddedGates(msgspec.Struct, frozen=True, kw_only=True, tag="added"):
    """Gates of a lane that no worker could decide: against a baseline or another revision. A later line replaces it."""

    cell: str
    lane: str
    launch: int = 0
    gates: list[GateResult]
    fate: Fate  # the lane's, with these gates
    reason: str = ""


class PairRecord(msgspec.Struct, frozen=True, kw_only=True, tag="pair"):
    """One item (cell and bucket) in one fresh pair of processes: every sample of every block, in order of time."""

    cell: str
    item: str
    number: int
    again: bool  # the fresh re-measurement of a FAIL
    order: list[str]  # the side of each block: "A" is the baseline, "B" the candidate
    blocks_us: list[list[float]]
    log_ratio: float  # candidate over baseline
    started: str  # ISO 8601, UTC
    load_1min: float = 0.0
    timed_again: dict[str, int] = {}  # blocks that a disturbed machine spoilt, by what disturbed it
    disturbed: dict[str, int] = {}  # blocks that were kept although it was disturbed at the last attempt too
    phase: str = ""
    artefacts: dict[str, dict[str, str]] = {}  # of each side: hashes of what ran
    versions: dict[str, dict[str, str]] = {}


class CellVerdict(msgspec.Struct, frozen=True, kw_only=True, tag="cell"):
    cell: str
    fate: Fate
    reason: str  # one sentence
    gates: int = 0
    failed: list[str] = []
    launches: int = 0  # serving processes that left a record
    bad_launches: int = 0


class Verdict(msgspec.Struct, frozen=True, kw_only=True, tag="verdict"):
    """The end of a run. A run without one was interrupted."""

    schema: int = SCHEMA_VERSION
    run: str
    exit_code: int
    title: str
    reasons: list[str]
    cells: list[CellVerdict]
    expected: int
    executed: int
    stored: int
    reported: int
    baseline: str  # "" says that there was none
    finished: str
    seconds: float


Line = RunHeader | LaneRecord | AddedGates | PairRecord | Verdict
