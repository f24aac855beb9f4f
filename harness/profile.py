"""A profile says what a sign-off is: which cells, how much evidence for each, and how long it may take.

A misspelt axis that sweeps nothing looks exactly like a sweep that found nothing, so every value is checked before work
starts.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

LEVELS = (0, 1, 2, 3)
#: Each graph mode with what it asks of a decode step and of a prefill step (the guide's tuple modes, resolved).
MODES: dict[str, tuple[str, str]] = {
    "NONE": ("NONE", "NONE"),
    "TR_HYBRID": ("TR_HYBRID", "TR_HYBRID"),
    "FULL": ("FULL", "NONE"),
    "FULL_DECODE_ONLY": ("FULL", "NONE"),
    "FULL_AND_TR_HYBRID": ("TR_HYBRID", "TR_HYBRID"),
}
WORKLOADS = ("decode", "prefill")
DTYPES = ("bfloat16", "float32")
ISOLATIONS = ("level", "cell")
DEVICES = ("cpu", "cuda")


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The engine limits that every cell is opened with."""

    max_num_seqs: int
    max_model_len: int
    block_size: int
    num_blocks: int
    eager_above_ladder: bool = False  # a stated policy; without it a batch above the ladder is a hole


class Axes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The matrix: the product of these lists, less what the engine declares unsupported."""

    model: list[str]
    level: list[int]
    mode: list[str]
    workload: list[str]
    ladder: list[list[int]]
    engine: list[str] = msgspec.field(default_factory=lambda: ["atom_impl"])
    op_backend: list[str] = msgspec.field(default_factory=lambda: ["torch"])


class Numerics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How G0 to G6 are driven."""

    input_sets: int = 8  # fresh sets after capture, per bucket
    replays: int = 2  # of each set
    soak_steps: int = 0  # interleaved replays at the end
    seed: int = 20260101
    float32_lane: bool = True
    serving_dtype: dict[str, str] = msgspec.field(default_factory=lambda: dict.fromkeys(DEVICES, "bfloat16"))


class Timing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    warmup_steps: int = 3
    samples: int = 15  # per arm and bucket
    staircase_samples: int = 5  # per batch size at every bucket's edges; 0 leaves the staircase out, and says so


class TimeLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Wall-clock seconds a worker may spend in one phase of one cell before it counts as hung."""

    build_s: float = 300.0
    compile_s: float = 600.0
    capture_s: float = 300.0
    replay_s: float = 600.0
    timing_s: float = 300.0
    teardown_s: float = 60.0


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Relative change against a baseline beyond which a cell is slower (or faster)."""

    step_time: dict[str, float] = msgspec.field(default_factory=lambda: {"cpu": 0.02, "cuda": 0.005})
    pad_share: float = 1.0  # most of a bucket's rows that may be padding; 0.5 allows a ladder of doublings


class Comparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How two revisions are timed against each other (`harness.comparison`)."""

    pairs: list[int] = msgspec.field(default_factory=lambda: [5, 8, 12, 18])  # cumulative process pairs at each look
    alpha: float = 0.05  # two-sided, over all looks and the whole matrix
    quads: int = 4  # ABBA blocks in one pair, per bucket
    block_steps: int = 5


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    title: str
    axes: Axes
    limits: Limits
    prefill_sizes: list[int] = []
    numerics: Numerics = msgspec.field(default_factory=Numerics)
    timing: Timing = msgspec.field(default_factory=Timing)
    time_limits: TimeLimits = msgspec.field(default_factory=TimeLimits)
    budget: Budget = msgspec.field(default_factory=Budget)
    comparison: Comparison = msgspec.field(default_factory=Comparison)
    baseline_required: bool = False
    launches: int = 1  # fresh processes per cell: on some hardware replay fails in one launch out of five
    isolation: str = "level"  # "level": one worker per level and dtype; "cell": one per cell
    debug_replay: bool = False  # every segment runs eagerly; see `harness.debug_replay`

    def digest(self) -> str:
        """Twelve hex digits that change with anything the profile asks for."""
        asked = msgspec.to_builtins(self)
        if not self.debug_replay:
            del asked["debug_replay"]  # profiles from before there was one keep their digest
        return hashlib.sha256(msgspec.json.encode(asked, order="sorted")).hexdigest()[:12]


def check(profile: Profile) -> None:
    """Raise `ValueError` for the first rule that the profile breaks, naming the value, the rule and the way out."""
    for problem in _problems(profile):
        raise ValueError(f"profile {profile.name!r}: {problem}")


def check_ladder(ladder: Sequence[int], max_num_seqs: int) -> None:
    """A ladder holds distinct sizes from 1 to `max_num_seqs`, so that each is a batch that a scheduler can make."""
    for problem in _size_problems("ladder", ladder, max_num_seqs, "max_num_seqs"):
        raise ValueError(problem)


def _problems(profile: Profile) -> Iterator[str]:
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", profile.name):
        yield "name: a name is letters, digits, '-', '_' and '.', because folders carry it"
    yield from _limit_problems(profile.limits)
    yield from _axis_problems(profile.axes)
    for ladder in profile.axes.ladder:
        yield from _size_problems("ladder", ladder, profile.limits.max_num_seqs, "max_num_seqs")
    if profile.prefill_sizes:
        most = profile.limits.max_num_seqs * profile.limits.max_model_len
        yield from _size_problems("prefill_sizes", profile.prefill_sizes, most, "max_num_seqs * max_model_len")
    yield from _evidence_problems(profile)


def _limit_problems(limits: Limits) -> Iterator[str]:
    for name in ("max_num_seqs", "max_model_len", "block_size", "num_blocks"):
        if getattr(limits, name) < 1:
            yield f"limits.{name} = {getattr(limits, name)}: must be at least 1"
    if limits.num_blocks * limits.block_size < limits.max_model_len:
        yield (
            f"limits: {limits.num_blocks} blocks of {limits.block_size} cannot hold one request of "
            f"{limits.max_model_len} tokens; raise num_blocks or lower max_model_len"
        )


def _axis_problems(axes: Axes) -> Iterator[str]:
    known: dict[str, Sequence[object]] = {"level": LEVELS, "mode": tuple(MODES), "workload": WORKLOADS}
    for name in axes.__struct_fields__:
        values = getattr(axes, name)
        if not values:
            yield f"axes.{name} is empty: an axis needs at least one value"
        for value, count in Counter(map(str, values)).items():
            if count > 1:
                yield f"axes.{name}: {value} is named {count} times; name each value once"
        for value in values:
            if name in known and value not in known[name]:
                yield f"unknown {name} {value!r}; choose from {', '.join(map(str, known[name]))}"


def _size_problems(name: str, sizes: Sequence[int], most: int, limit: str) -> Iterator[str]:
    text = f"{name} {list(sizes)}"
    if not sizes:
        yield f"{name} is empty: name at least one size"
    for size, count in Counter(sizes).items():
        if size < 1:
            yield f"{text}: {size} is not a size; sizes are whole numbers from 1"
        if count > 1:
            yield f"{text}: {size} is named {count} times; name each size once"
        if size > most:
            yield f"{text}: {size} can never be reached, since {limit} is {most}; drop it or raise the limit"


def _evidence_problems(profile: Profile) -> Iterator[str]:
    numerics, timing = profile.numerics, profile.timing
    if profile.isolation not in ISOLATIONS:
        yield f"unknown isolation {profile.isolation!r}; choose from {', '.join(ISOLATIONS)}"
    for device, dtype in numerics.serving_dtype.items():
        if device not in DEVICES:
            yield f"numerics.serving_dtype: unknown device {device!r}; choose from {', '.join(DEVICES)}"
        if dtype not in DTYPES:
            yield f"unknown dtype {dtype!r}; choose from {', '.join(DTYPES)}"
    least = {
        "numerics.input_sets": (numerics.input_sets, 1),
        "numerics.replays": (numerics.replays, 1),
        "numerics.soak_steps": (numerics.soak_steps, 0),
        "timing.warmup_steps": (timing.warmup_steps, 0),
        "timing.samples": (timing.samples, 1),
        "timing.staircase_samples": (timing.staircase_samples, 0),
        "comparison.quads": (profile.comparison.quads, 1),
        "comparison.block_steps": (profile.comparison.block_steps, 1),
        "launches": (profile.launches, 1),
    }
    for name, (value, minimum) in least.items():
        if value < minimum:
            yield f"{name} = {value}: must be at least {minimum}"
    if numerics.input_sets * numerics.replays == 1:
        yield (
            "numerics: one input set replayed once is each recording's first replay, which is judged apart, so that G1 "
            "compares nothing and every graph cell is wrong; set replays = 2, or input_sets = 2"
        )
    for name in profile.time_limits.__struct_fields__:
        if not getattr(profile.time_limits, name) > 0:
            yield f"time_limits.{name} must be more than 0 seconds"
