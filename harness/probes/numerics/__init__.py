"""Numerics: one step in four arms, E, C, R and float64, judged by the gates of the measurement protocol.

An end-to-end comparison of eager with replay cannot tell the bucket from the compiler from the recording;
neighbouring arms differ by one variable each, so a red gate names its layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from harness.engines.base import Phase
from harness.probes.base import ProbeContext, ProbeResult
from harness.probes.buckets import buckets_of, mode_of, phase_of
from harness.probes.compiles import compilations
from harness.probes.gates import judged, report
from harness.probes.numerics.arms import Bench
from harness.probes.numerics.drive import Driver, Judges
from harness.probes.numerics.effort import Effort
from harness.probes.numerics.evidence import Evidence
from harness.probes.numerics.g0 import Repeat
from harness.probes.numerics.g1 import Recording
from harness.probes.numerics.g2 import Padding
from harness.probes.numerics.g3 import compiler_gate, recording_by_error
from harness.probes.numerics.g4 import batch_gate
from harness.probes.numerics.g5 import logits_gate
from harness.probes.numerics.g6 import token_gate
from harness.probes.numerics.g7 import Distance
from harness.probes.trace import StepTrace
from harness.records import GateResult
from harness.workloads import Corpus, DecodeStream, Limits, PrefillStream, Stream, byte_encoder


@dataclass(frozen=True)
class Preconditions:
    """What must stand still while bits are compared: artefact hashes, the thread count, the compile counts, both the
    engine's and torch's.
    """

    artefacts: Mapping[str, str]
    threads: int
    compiles: Mapping[str, float]

    @classmethod
    def now(cls, context: ProbeContext) -> Preconditions:
        counters = {name: float(value) for name, value in context.session.counters().items() if "compile" in name}
        return cls(dict(context.session.artefacts()), torch.get_num_threads(), counters | compilations())

    def gate(self, later: Preconditions) -> GateResult:
        changed = []
        if self.artefacts != later.artefacts:
            names = sorted(
                k for k in {*self.artefacts, *later.artefacts} if self.artefacts.get(k) != later.artefacts.get(k)
            )
            changed.append(f"artefact {names[0]} has another hash")
        if self.threads != later.threads:
            changed.append(f"the thread count went from {self.threads} to {later.threads}")
        for name, count in later.compiles.items():
            if count != self.compiles.get(name, 0.0):
                changed.append(f"{name} went from {self.compiles.get(name, 0.0):g} to {count:g}")
        if changed:
            return judged(
                "G1.artefact", False, f"between capture and the last replay {changed[0]}: bits prove nothing then"
            )
        return judged(
            "G1.artefact", True, f"{len(self.artefacts)} artefact hashes, thread count and compile counts stood still"
        )


class NumericsProbe:
    """G0 to G7 over seeded input sets; every driven step is left in `trace` for the probes that count."""

    name = "numerics"

    def __init__(self, trace: StepTrace) -> None:
        self.trace = trace

    def run(self, context: ProbeContext) -> ProbeResult:
        effort = Effort.of(context)
        recorded = mode_of(context) != "NONE"
        dtype = getattr(torch, context.spec.dtype)
        judges = Judges(Repeat(), Recording(), Padding(), Distance(), Evidence(dtype), Evidence(dtype))
        before = Preconditions.now(context)
        seed = context.profile.numerics.seed
        with torch.inference_mode():
            stream, tokeniser = open_stream(context, effort, recorded=recorded)
            Driver(Bench(context, self.trace), judges, effort, recorded=recorded, seed=seed).run(stream)
        gates = [
            *_gates(judges, effort, context, recorded=recorded),
            before.gate(Preconditions.now(context)),
            tokeniser,
        ]
        return ProbeResult(
            gates=gates, counters={"numerics.effort": effort.as_dict(), "numerics.rows": len(judges.compiler)}
        )


def open_stream(context: ProbeContext, effort: Effort, *, recorded: bool) -> tuple[Stream, GateResult]:
    """The cell's step stream, and a report of whose tokeniser read the English prompts."""
    encode = context.session.encoder()
    vocab_size = context.session.vocab_size
    corpus = Corpus(encode or byte_encoder(vocab_size), vocab_size)
    whose = (
        "the model's own tokeniser" if encode else "bytes folded into the vocabulary (the session offers no tokeniser)"
    )
    spec = context.spec
    limits = Limits(spec.max_num_seqs, spec.max_model_len, spec.block_size, spec.num_blocks)
    seed, buckets = context.profile.numerics.seed, buckets_of(context)
    stream: Stream
    if phase_of(context) is Phase.PREFILL:
        every = effort.reference_every
        stream = PrefillStream(
            corpus, buckets, limits, rounds=effort.rounds, seed=seed, padded=recorded, reference_every=every
        )
    else:
        vary = effort.vary_rounds
        stream = DecodeStream(
            corpus, buckets, limits, rounds=effort.rounds, seed=seed, padded=recorded, vary_rounds=vary
        )
    return stream, report("workload", f"{len(corpus)} English prompts, read as {whose}; seed {seed}")


def _gates(judges: Judges, effort: Effort, context: ProbeContext, *, recorded: bool) -> list[GateResult]:
    padded = max(buckets_of(context)) > 1
    recording = judges.recording.results(recorded=recorded, soak=effort.soak_steps > 0)
    if not judges.repeat.compiled_repeats:
        recording = [recording_by_error(judges.compiler)]
    return [
        *judges.repeat.results(),
        *recording,
        *judges.padding.results(padded=padded),
        compiler_gate(judges.compiler),
        batch_gate(judges.batch, padded=padded and (recorded or len(judges.batch) > 0)),
        logits_gate(judges.compiler),
        token_gate(judges.compiler),
        judges.distance.result(),
    ]
