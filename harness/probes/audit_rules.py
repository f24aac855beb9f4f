"""Which outside counts must equal which claims.

Arm C runs the same code at the same rows without a graph, so what its count and the replay's differ by is what the
graph layer adds. All of that must be claimed: a copy that only the count knows is time that no ledger will ever show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from harness.engines.observed import Observed, ObservedCopy, Place
from harness.probes.gates import plural

#: Claimed copies that land elsewhere than in staging or output buffers.
INTERNAL = ("copy_in", "handoff")
#: How a rewritten tail shows: an operator on a CPU, a kernel or a memset on a GPU.
FILLS = ("aten::zero_", "aten::fill_", "Memset", "FillFunctor")
SHOWN = 3


@dataclass(frozen=True)
class Audited:
    """One step of arm R with the same step of arm C, and what the cell and the capture say of it.

    `mode` is what the cell asks for, `bucket` where the step must replay (None: eagerly), `nodes` what the capture
    claims for that bucket, `clones` how many layout-keeping clones the engine declares that its model makes.
    """

    replay: Observed
    plain: Observed
    mode: str
    bucket: int | None
    nodes: int | None = None
    clones: int = 0


def launches(step: Audited) -> list[str]:
    claimed, counted = step.replay.claim.get("segments") or 0, step.replay.launches
    found = [f"{plural(counted, 'graph')} launched and {claimed} segments claimed"] if claimed != counted else []
    if step.plain.launches:
        found.append(f"{plural(step.plain.launches, 'graph')} launched in arm C, which has none")
    return found


def regions(step: Audited) -> list[str]:
    """Regions without a segment between them look like one, so equality is asked where each has its own gap."""
    claim, counted = step.replay.claim, step.replay.regions
    claimed, segments = claim.get("regions") or 0, claim.get("segments") or 0
    agrees = counted == claimed if segments == claimed + 1 else counted <= claimed
    if agrees or not segments:
        return []
    return [f"{counted} stretches of eager work between graph launches and {claimed} regions claimed"]


def nodes(step: Audited) -> list[str]:
    if not step.replay.launches or step.nodes == step.replay.nodes:
        return []
    return [f"the launched graphs hold {step.replay.nodes} nodes and the capture claims {step.nodes}"]


def staging(step: Audited) -> list[str]:
    return [
        text
        for arm, seen in (("R", step.replay), ("C", step.plain))
        if (text := _landed(seen, Place.STAGING, f"host copies in arm {arm}"))
    ]


def output(step: Audited) -> list[str]:
    text = _landed(step.replay, Place.OUTPUT, "copies into output buffers")
    if text and step.replay.landed(Place.OUTPUT)[0] < _claimed(step.replay.claim, (Place.OUTPUT.value,))[0]:
        text += ": the caller reads what lies in the pool, and the next replay takes it (LIFETIME)"
    return [text] if text else []


def copies(step: Audited) -> list[str]:
    """Device copies beyond arm C's must be the claimed ones, and none of arm C's may be missing."""
    ours, theirs = _device(step.replay), _device(step.plain)
    surplus = _beyond(ours, theirs)
    count, nbytes = _claimed(step.replay.claim, INTERNAL)
    found = []
    if (len(surplus), sum(copy.bytes for copy in surplus)) != (count, nbytes):
        if len(surplus) >= count:
            said = f", {count} of {nbytes} bytes are claimed" if count else ""
            found.append(f"{_number(len(surplus))} beyond the plain step's{said}: {_listed(surplus)}")
        else:
            found.append(f"{count} copies of {nbytes} bytes claimed and {len(surplus)} made: {_listed(surplus)}")
    if missing := _beyond(theirs, ours):
        found.append(f"{_number(len(missing))} of the plain step not made in the replay: {_listed(missing)}")
    needless = step.replay.needless or step.plain.needless
    if len(needless) > step.clones:
        found.append(
            f"{len(needless)} clones that keep their source's layout, and the engine declares {step.clones} "
            f"(clones_per_step): {_listed(needless)}"
        )
    return found


def operations(step: Audited) -> list[str]:
    """All other device work of the replay is that of the plain step, but for the tails that are claimed."""
    ours, theirs = Counter(step.replay.operations), Counter(step.plain.operations)
    surplus, missing = ours - theirs, theirs - ours
    fills = {name: count for name, count in surplus.items() if any(fill in name for fill in FILLS)}
    padding = _claimed(step.replay.claim, ("padding",))[0]
    found = []
    if sum(fills.values()) == padding:
        surplus -= Counter(fills)
    else:
        found.append(f"{padding} rewritten tails claimed and {sum(fills.values())} fills beyond the plain step's")
    for what, names, seen in (("only in the replay", surplus, step.replay), ("not in the replay", missing, step.plain)):
        if names:
            shown = [f"{count} x {name}{_at(seen, name)}" for name, count in names.most_common(SHOWN)]
            found.append(f"{sum(names.values())} operations {what}: {', '.join(shown)}")
    return found


def pool(step: Audited) -> list[str]:
    """Between captures the pool is the recordings': what looks free in it, the next replay writes."""
    found = []
    for arm, seen in (("R", step.replay), ("C", step.plain)):
        use = seen.pool_use
        if use is None or not (use.taken or use.returned):
            continue
        site = f", first at {use.site}" if use.site else ""
        found.append(
            f"arm {arm} took {plural(use.taken, 'block')} of {use.bytes} bytes from the recordings' pool outside a "
            f"capture and gave {use.returned} back{site}: what looks free there, the next replay writes (LIFETIME)"
        )
    return found


def mode(step: Audited) -> list[str]:
    """The mode that the launches show is the one claimed, and the claimed one is the one asked for."""
    claim, counted = step.replay.claim, step.replay.launches
    requested, effective, reason = claim.get("requested_mode"), claim.get("effective_mode"), claim.get("fallback")
    found = []
    if requested != step.mode:
        found.append(f"the cell asks for {step.mode} and the step says that {requested} was requested")
    if effective != requested and not reason:
        found.append(f"ran as {effective} where {requested} was requested, without a reason")
    shows = {"NONE": counted == 0, "FULL": counted == 1}.get(str(effective), counted > 0)
    if not shows:
        found.append(f"claims {effective} and launched {plural(counted, 'graph')}")
    if step.bucket is not None and counted == 0:
        found.append(f"has bucket {step.bucket} and launched no graph (reason: {reason})")
    return found


def _landed(seen: Observed, place: Place, what: str) -> str:
    claimed, counted = _claimed(seen.claim, (place.value,)), seen.landed(place)
    if claimed == counted:
        return ""
    return f"{counted[0]} {what} of {counted[1]} bytes, and {claimed[0]} of {claimed[1]} claimed"


def _claimed(claim: Mapping[str, Any], kinds: Iterable[str]) -> tuple[int, int]:
    entries = [entry for kind, entry in (claim.get("copies") or {}).items() if kind in kinds]
    return sum(entry["count"] for entry in entries), sum(entry["bytes"] for entry in entries)


def _device(seen: Observed) -> list[ObservedCopy]:
    return [copy for copy in seen.copies if copy.place is Place.DEVICE]


def _beyond(ours: Iterable[ObservedCopy], theirs: Iterable[ObservedCopy]) -> list[ObservedCopy]:
    """Copies of `ours` without a partner in `theirs`: of the same operation, size and place in the code if there is
    one, else of the same operation and size, so that what is left over is named by its own place.
    """
    found, left = list(ours), list(theirs)
    for key in (_by_arrival, _by_site, _by_size):
        pairs = Counter(map(key, found)) & Counter(map(key, left))
        found, left = _without(found, pairs, key), _without(left, pairs, key)
    return found


def _by_arrival(copy: ObservedCopy) -> tuple[object, ...]:
    return copy.op, copy.bytes, copy.site, copy.recorded


def _by_site(copy: ObservedCopy) -> tuple[object, ...]:
    return copy.op, copy.bytes, copy.site


def _by_size(copy: ObservedCopy) -> tuple[object, ...]:
    return copy.op, copy.bytes


def _without(
    copies: Iterable[ObservedCopy], taken: Counter[Any], key: Callable[[ObservedCopy], Any]
) -> list[ObservedCopy]:
    taken = taken.copy()
    kept = []
    for copy in copies:
        if taken[key(copy)]:
            taken[key(copy)] -= 1
        else:
            kept.append(copy)
    return kept


def _number(count: int) -> str:
    return f"{count} device {'copy' if count == 1 else 'copies'}"


def _listed(found: Iterable[ObservedCopy]) -> str:
    texts = Counter(map(str, found)).most_common()
    shown = [f"{count} x {text}" if count > 1 else text for text, count in texts[:SHOWN]]
    return "; ".join(shown) + (f"; and {len(texts) - SHOWN} kinds more" if len(texts) > SHOWN else "")


def _at(seen: Observed, name: str) -> str:
    site = seen.sites.get(name)
    return f" at {site}" if site else ""
