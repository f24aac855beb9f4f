"""Whether a start from a warm compile cache computes the same bits as the cold start that filled it.

A cache that hands out another piece's code passes every test in the process that compiled it. So each side is a process
of its own: the same step in arms E, C and R, by the digest of its logits, with the compiles and the loads counted.

    python -m tools.cache_bits --device cuda --out results/records/<machine>/cache_bits.json

Exit code 0: every digest is equal and the two sides were what they are called. 1: not so.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CHILD = "--child"
LIMIT_S = 1800
ARMS = ("E", "C", "R")
LADDER, BLOCK, LENGTH = [1, 2, 4], 16, 64
Side = Mapping[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.child:
        print(json.dumps(_start(json.loads(options.child))), flush=True)
        return 0
    rows = []
    for dtype in options.dtypes:
        asked = {"model": options.model, "level": options.level, "mode": options.mode, "device": options.device}
        row = compare({"dtype": dtype, **asked}, *_sides({"dtype": dtype, **asked}))
        rows.append(row)
        print(f"{dtype}: {'; '.join(row['wrong']) or 'cold and warm agree in every arm'}", flush=True)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(_record(rows), indent=1) + "\n")
    return 1 if any(row["wrong"] for row in rows) else 0


def compare(asked: Side, cold: Side, warm: Side) -> dict[str, Any]:
    """The two sides of one dtype and, under `wrong`, all that is not as it must be."""
    wrong = [
        f"arm {arm} at {size} rows: {cold['bits'][arm][size]} cold and {found} warm"
        for arm, sizes in warm["bits"].items()
        for size, found in sizes.items()
        if cold["bits"][arm][size] != found
    ]
    if not cold["compiled"]:
        wrong.append("the cold start compiled nothing")
    if warm["compiled"] or not warm["loaded"]:
        wrong.append(f"the warm start compiled {warm['compiled']} pieces and loaded {warm['loaded']}")
    return {**asked, "cold": cold, "warm": warm, "wrong": wrong}


def _sides(asked: Side) -> list[dict[str, Any]]:
    """The cold start and the warm one, each in a process of its own, with caches that the two share."""
    from atom_impl.compilation.cache_identity import cache_root

    with tempfile.TemporaryDirectory(prefix="cache-bits-") as name:
        folder = Path(name)
        (folder / "atom").mkdir(mode=0o700)
        for kept in ("weights", "software_graph"):  # neither is a compile cache
            if (cache_root() / kept).is_dir():
                (folder / "atom" / kept).symlink_to(cache_root() / kept)
        caches = {
            "ATOM_CACHE_ROOT": str(folder / "atom"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
            "TRITON_CACHE_DIR": str(folder / "triton"),
        }
        return [_run(asked, {**os.environ, **caches}) for _ in ("cold", "warm")]


def _run(asked: Side, environment: Mapping[str, str]) -> dict[str, Any]:
    """Raises RuntimeError with the child's last output if it fails."""
    command = [sys.executable, "-m", "tools.cache_bits", CHILD, json.dumps(asked)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{asked} ended with {done.returncode}: {done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _start(asked: Side) -> dict[str, Any]:
    """One start: capture, then a full step of each bucket in every arm from an empty KV cache."""
    import torch

    from harness.cells import Cell
    from harness.engines import get_engine
    from harness.engines.base import Arm, SessionSpec

    cell = Cell.of(model=asked["model"], level=asked["level"], mode=asked["mode"], workload="decode", ladder=LADDER)
    spec = SessionSpec(asked["dtype"], asked["device"], max(LADDER), LENGTH, BLOCK, 4 * max(LADDER))
    session = get_engine("atom_impl").open(cell, spec)
    counts = session.capture()["compiles"]
    bits: dict[str, dict[str, str]] = {arm: {} for arm in ARMS}
    with torch.inference_mode():
        for arm in ARMS:
            for rows in LADDER:
                for cache in session.kv():
                    cache.zero_()
                logits = session.step(_batch(rows), Arm(arm)).logits
                raw = logits.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
                bits[arm][str(rows)] = hashlib.sha256(raw).hexdigest()[:16]
    session.close()
    return {"bits": bits, "compiled": counts["num_inductor_compiles"], "loaded": counts["num_cache_hits"]}


def _batch(rows: int) -> Any:
    """A decode step of `rows` requests at different lengths."""
    from harness.engines.base import Phase, StepBatch

    return StepBatch(
        Phase.DECODE,
        token_ids=tuple((3 + 7 * row,) for row in range(rows)),
        context_lens=tuple(1 + 9 * row for row in range(rows)),
        block_tables=tuple(tuple(range(4 * row, 4 * row + 4)) for row in range(rows)),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.cache_bits", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--level", type=int, default=3, choices=range(1, 4))
    parser.add_argument("--mode", default="TR_HYBRID", help="graph mode of arm R (default: TR_HYBRID)")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--out", type=Path, help="the record to write")
    parser.add_argument(CHILD, help=argparse.SUPPRESS)
    return parser


def _record(rows: Sequence[Side]) -> dict[str, Any]:
    from harness.machine import fingerprint
    from harness.revision import revision

    return {
        "command": f"python -m tools.cache_bits {' '.join(sys.argv[1:])}".strip(),
        "what": "sha256 (first 16 digits) of the logits of one decode step by arm and rows, cold and warm start",
        "revision": revision(Path(__file__).parent),
        "rows": list(rows),
        "fingerprint": fingerprint(),
    }


if __name__ == "__main__":
    sys.exit(main())
