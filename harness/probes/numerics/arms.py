"""Run one step in one arm from a known cache, keep what it produced, and put the cache back.

All arms must see the same state, or a difference says nothing: an arm that wrote its own keys first changes what the
next one reads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from harness.engines.base import Arm, PadFill, StepBatch
from harness.probes.answers import asked_by, shared_arm
from harness.probes.base import ProbeContext
from harness.probes.numerics.kv import KvImage, StrayWrite, poison_all_but, slots_of
from harness.probes.trace import StepTrace
from harness.workloads import context_slots, written_slots


@dataclass(frozen=True)
class ArmRun:
    """Copies: `hidden` [rows, hidden size], `logits` [rows, vocabulary], `kv` the slots that the live rows wrote."""

    arm: Arm
    hidden: torch.Tensor
    logits: torch.Tensor
    kv: list[torch.Tensor]
    stray: StrayWrite | None

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Everything that is compared, the outputs first."""
        return [("hidden", self.hidden), ("logits", self.logits), *((f"kv[{i}]", t) for i, t in enumerate(self.kv))]

    def non_finite(self) -> str:
        """The first compared tensor that holds NaN or infinity, or ''."""
        for name, tensor in self.tensors():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                row = int((~torch.isfinite(tensor)).flatten(1).any(dim=1).nonzero()[0])
                return f"{name} row {row}"
        return ""


class Bench:
    """One opened session whose cache stands still between steps."""

    def __init__(self, context: ProbeContext, trace: StepTrace) -> None:
        self.session, self.trace = context.session, trace
        self.block_size = context.spec.block_size
        self.state = KvImage(self.session.kv())
        self._answers, self._cell, self._dtype = context.answers, context.cell, context.spec.dtype
        self._last_slots: frozenset[int] = frozenset()
        self._churn = torch.Generator().manual_seed(context.profile.numerics.seed)

    def answer(self, batch: StepBatch, arm: Arm, rows: int | None = None) -> ArmRun:
        """What `run` gives, or gave an earlier cell that asked arm E or REF for this step over the same cache."""
        shared = None if self._answers is None else shared_arm(self._cell, arm)
        if self._answers is None or shared is None:
            return self.run(batch, arm, rows=rows)
        asked = asked_by(self._cell, self._dtype, shared, batch, rows, self.state.digest)
        run = self._answers.get(asked)
        if run is None:
            run = self.run(batch, arm, rows=rows)
            self._answers.keep(asked, run)
        return replace(run, arm=arm)

    def run(
        self,
        batch: StepBatch,
        arm: Arm,
        *,
        rows: int | None = None,
        pad: PadFill = PadFill.ENGINE,
        poison_unowned: bool = False,
    ) -> ArmRun:
        """The step in `arm`, on the bench's cache or on that cache with NaN wherever no live row owns a slot."""
        cache, before = self.session.kv(), self.state
        if poison_unowned:
            poison_all_but(cache, context_slots(batch, self.block_size))
            before = KvImage(cache)
        result = self.session.step(batch, arm, rows=rows, pad=pad)
        self.session.synchronize()
        self.trace.add(arm, batch, result.claim)
        written = [] if arm is Arm.REF else written_slots(batch, self.block_size)
        hidden, logits = _whole(result.hidden, batch, "hidden"), _whole(result.logits, batch, "logits")
        own = slots_of(cache, written) if written else []
        before.restore_slots(cache, written)
        stray = before.stray_write(cache)
        if stray is not None:
            stray = replace(stray, of_last_step=stray.slot in self._last_slots)
        self._last_slots = frozenset(written or self._last_slots)
        if stray is not None or poison_unowned:
            self.state.restore(cache)
        return ArmRun(arm, hidden, logits, own, stray)

    def replay(self, batch: StepBatch, *, pad: PadFill = PadFill.ENGINE, poison_unowned: bool = False) -> ArmRun:
        """Arm R after allocator churn, with every output buffer full of NaN."""
        self._allocate_and_free()
        self.session.poison_outputs()
        return self.run(batch, Arm.R, pad=pad, poison_unowned=poison_unowned)

    def advance(self, batch: StepBatch) -> None:
        """Run the step in arm E and keep what it wrote."""
        result = self.session.step(batch, Arm.E)
        self.session.synchronize()
        self.trace.add(Arm.E, batch, result.claim)
        self.state = KvImage(self.session.kv())

    def grown(self, batch: StepBatch) -> KvImage:
        """The cache as it will be once `batch` has run in arm E; the bench's own state stays as it is."""
        state = self.state
        self.advance(batch)
        grown, self.state = self.state, state
        state.restore(self.session.kv())
        return grown

    def _allocate_and_free(self) -> None:
        """Fill freed blocks with NaN, so that a recording which still reads one cannot be right by luck."""
        device = self.session.kv()[0].device
        sizes = torch.randint(8, 20, (12,), generator=self._churn).tolist()
        held = [torch.full((1 << size,), torch.nan, device=device) for size in sizes]
        del held[::2]
        held += [torch.full((1 << size,), torch.nan, device=device) for size in sizes[:4]]


def _whole(tensor: torch.Tensor, batch: StepBatch, name: str) -> torch.Tensor:
    if tensor.dim() != 2 or tensor.shape[0] != batch.rows or tensor.numel() == 0:
        raise ValueError(
            f"the session returned {name} of shape {tuple(tensor.shape)} for {batch.rows} live rows; "
            f"it must be [{batch.rows}, width]"
        )
    return tensor.detach().clone()
