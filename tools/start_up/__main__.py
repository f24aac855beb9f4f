"""`python -m tools.start_up --out results/records/<machine>/start_up.json`: every side, paired, then what must hold.

Exit code 0: every claim that could be decided holds. 1: one does not. 3: one is undecided.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tools.start_up.child import Start
from tools.start_up.claims import Claim, Round, claims

LIMIT_S = 1800
CHILD = "--child"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.child:
        return _be_a_child(options.child)
    rounds = _rounds(options)
    dispatch = None if options.no_dispatch else _run(_start(options, 2), {}, kind="dispatch")
    record = _record(options, rounds, dispatch)
    for claim in record["claims"]:
        print(_line(claim))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    verdicts = [claim["holds"] for claim in record["claims"]]
    return 1 if False in verdicts else 3 if None in verdicts else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.start_up", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--levels", type=int, nargs="+", default=[0, 1, 2, 3], choices=range(4))
    parser.add_argument("--mode", default="NONE", help="graph mode; NONE leaves the capture out (default)")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--ladder", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=5, help="pairs of fresh processes (default: 5)")
    parser.add_argument("--each-rounds", type=int, default=1, help="rounds that also compile each piece by itself")
    parser.add_argument("--within", type=float, help="seconds; a round that would not end in time is not begun")
    parser.add_argument("--no-dispatch", action="store_true", help="leave the cost of a call out")
    parser.add_argument("--out", type=Path, help="the record to write")
    parser.add_argument(CHILD, help=argparse.SUPPRESS)
    return parser


def _rounds(options: argparse.Namespace) -> list[Round]:
    """At least one round; no further one that would end after `--within`, if it takes what the last one took."""
    begun = time.monotonic()
    rounds: list[Round] = []
    for number in range(options.rounds):
        started = time.monotonic()
        rounds.append(_round(options, number))
        _tell(number, rounds[-1])
        now = time.monotonic()
        apart = rounds[-1]["3 each"]["whole_s"] if number + 1 == options.each_rounds and "3 each" in rounds[-1] else 0.0
        if options.within is not None and now - begun + (now - started - apart) > options.within:
            print(f"{len(rounds)} of {options.rounds} rounds fit into {options.within:g} s", flush=True)
            break
    return rounds


def _round(options: argparse.Namespace, number: int) -> Round:
    """One start of each side. The start without a compiler stands before the others and after them in turn."""
    sides: dict[str, Mapping[str, Any]] = {}
    plan = [level for level in options.levels if level]
    for level in plan if number % 2 == 0 else reversed(plan):
        with tempfile.TemporaryDirectory(prefix="start-up-") as folder:
            own = _own_caches(Path(folder))
            for name in ("cold", "warm"):
                sides[f"{level} {name}"] = _run(_start(options, level), own)
    if 3 in options.levels and number < options.each_rounds:
        with tempfile.TemporaryDirectory(prefix="start-up-") as folder:
            own = {**_own_caches(Path(folder)), "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
            sides["3 each"] = _run(_start(options, 3, share=False), own)
    sides["0"] = _run(_start(options, 0), {})
    return sides


def _start(options: argparse.Namespace, level: int, *, share: bool = True) -> Start:
    return Start(
        options.model, level, options.mode, options.device, options.dtype, options.ladder, share, born=time.time()
    )


def _own_caches(folder: Path) -> dict[str, str]:
    """An empty cache of every kind; the weights, which no start should fetch, are linked into it."""
    from atom_impl.compilation.cache_identity import cache_root

    root, weights = folder / "atom", cache_root() / "weights"
    root.mkdir(mode=0o700)
    if weights.is_dir():
        (root / "weights").symlink_to(weights)
    software = cache_root() / "software_graph"
    if software.is_dir():  # the CPU's recorder is built once for a machine and is no part of a start
        (root / "software_graph").symlink_to(software)
    return {
        "ATOM_CACHE_ROOT": str(root),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }


def _run(start: Start, environment: Mapping[str, str], kind: str = "start") -> dict[str, Any]:
    """One child. Raises RuntimeError with its last output if it fails."""
    command = [sys.executable, "-m", "tools.start_up", CHILD, f"{kind} {start.text()}"]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode:
        raise RuntimeError(f"level {start.level} ended with {done.returncode}: {done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _be_a_child(text: str) -> int:
    from tools.start_up import child

    kind, _, start = text.partition(" ")
    if kind == "dispatch":
        from tools.start_up import dispatch

        print(json.dumps(dispatch.measure(Start(**json.loads(start)))), flush=True)
    else:
        child.main(start)
    return 0


def _tell(number: int, sides: Round) -> None:
    parts = [f"{side} {one['whole_s']:.1f} s (trace {one['trace_s']:.1f})" for side, one in sides.items()]
    print(f"round {number}: {', '.join(parts)}", flush=True)


def _record(options: argparse.Namespace, rounds: Sequence[Round], dispatch: Mapping[str, Any] | None) -> dict[str, Any]:
    from atom_impl.model_loader import resolve_model
    from harness.machine import fingerprint
    from harness.revision import revision

    split_ops = resolve_model(options.model).config.num_hidden_layers
    found: list[Claim] = claims(rounds, options.levels, split_ops)
    return {
        "command": f"python -m tools.start_up {' '.join(sys.argv[1:])}".strip(),
        "what": "seconds from a process's birth to the end of its first step, each start in a process of its own",
        "revision": revision(Path(__file__).parent),
        "claims": [asdict(claim) for claim in found],
        "dispatch": dispatch,
        "rounds": list(rounds),
        "fingerprint": fingerprint(),
    }


def _line(claim: Mapping[str, Any]) -> str:
    word = {True: "holds", False: "DOES NOT HOLD", None: "undecided"}[claim["holds"]]
    return f"{word}: {claim['name']} {claim['measured']:.3f}, limit {claim['threshold']:.3f} ({claim['detail']})"


if __name__ == "__main__":
    sys.exit(main())
