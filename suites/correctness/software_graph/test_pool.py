"""The pool is the largest recording's, not the sum; it frees, splits, joins and reuses, and outlives its graphs.

A pool that only grows looks right in every numeric test and takes the memory that the KV cache was promised.
"""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from atom_impl.device.software import CompilerMissing, SoftwareDevice, SoftwareGraph, arena, launch

pytestmark = pytest.mark.usefixtures("inference")


@pytest.fixture
def device() -> SoftwareDevice:
    return SoftwareDevice()


def _record_buckets(device: SoftwareDevice, buckets: list[int]) -> tuple[int, list[SoftwareGraph], list[torch.Tensor]]:
    torch.manual_seed(0)
    weights = [torch.randn(256, 256) for _ in range(3)]
    x, outs, graphs = torch.randn(8, 256), [], []
    pool = device.new_pool()
    with device.recording():
        for rows in buckets:
            outs.append(torch.zeros(rows, 256))
            graph = device.graph()
            graph.capture_begin(pool=pool)
            hidden = x[:rows]
            for weight in weights:
                hidden = (hidden @ weight).softmax(-1) + hidden
            outs[-1].copy_(hidden)
            del hidden
            graph.capture_end()
            graphs.append(graph)
    for rows, graph, out in [*zip(buckets, graphs, outs, strict=True)] * 2:
        graph.replay()
        expected = x[:rows]
        for weight in weights:
            expected = (expected @ weight).softmax(-1) + expected
        assert torch.equal(out, expected)
    return device.pool_bytes(pool), graphs, outs


def test_four_buckets_cost_what_the_largest_costs(device: SoftwareDevice) -> None:
    alone, *_ = _record_buckets(device, [8])
    together, *_ = _record_buckets(device, [8, 4, 2, 1])
    assert alone >= 8 * 256 * 4
    assert together <= 1.15 * alone


def test_a_pool_outlives_its_last_graph(device: SoftwareDevice) -> None:
    x, out, pool = torch.randn(4), torch.zeros(4), device.new_pool()
    for _ in range(3):
        graph = SoftwareGraph()
        graph.capture_begin(pool)
        out.copy_(x.neg())
        graph.capture_end()
        graph.replay()
        del graph
        gc.collect()
    assert device.pool_bytes(pool) == 64


def test_blocks_are_aligned_split_joined_and_reused(device: SoftwareDevice) -> None:
    pool = device.new_pool()
    with device.allocating(pool):
        blocks = [torch.empty(n, dtype=torch.uint8) for n in (1, 65, 200)]
    assert [(b.data_ptr() - pool.base) for b in blocks] == [0, 64, 192]
    assert pool.used_bytes == 64 + 128 + 256
    start = blocks[0].data_ptr()
    del blocks[1], blocks[0]  # the neighbours join
    with device.allocating(pool):
        joined = torch.empty(192, dtype=torch.uint8)
    assert joined.data_ptr() == start
    assert device.pool_bytes(pool) == 64 + 128 + 256


def test_a_replay_gives_back_no_block_that_is_still_in_use(device: SoftwareDevice) -> None:
    """A kernel's raw scratch, replayed at an address that another tensor holds by then, once freed that tensor."""
    scratch = arena.library().use_raw_scratch
    x, pool = torch.randn(4, 64), device.new_pool()
    with device.recording():
        graph = device.graph()
        graph.capture_begin(pool=pool)
        y = x + 1
        launch(lambda: scratch(256))
        held = torch.empty_like(y)  # where the scratch was
        graph.capture_end()
        used = pool.used_bytes
        for _ in range(2):
            graph.replay()
            assert pool.used_bytes == used
    del held
    assert pool.used_bytes < used


def test_pools_do_not_know_each_others_tensors(device: SoftwareDevice) -> None:
    one, other = device.new_pool(), device.new_pool()
    with device.allocating(one):
        t = torch.randn(4, 4)
    assert device.owns(one, t[1:])
    assert not device.owns(other, t)
    assert not device.owns(one, torch.randn(4))
    assert device.alias(t[1:, ::2]).stride() == (4, 2)


def test_an_alias_does_not_keep_its_block(device: SoftwareDevice) -> None:
    pool = device.new_pool()
    with device.allocating(pool):
        t = torch.ones(16)
    view = device.alias(t)
    assert torch.equal(view, t)
    del t
    assert pool.used_bytes == 0
    assert view.isnan().all()


def test_a_dropped_pool_gives_its_memory_back_and_stays_readable(device: SoftwareDevice) -> None:
    pool = device.new_pool()
    with device.allocating(pool):
        t = torch.ones(1 << 20)
    stale, number = device.alias(t), pool.id
    del t, pool
    gc.collect()
    assert not stale.any()  # pages returned, address range kept
    others = [device.new_pool() for _ in range(number + 1)]
    assert number in [other.id for other in others]  # and used again


def test_a_pool_that_is_full_says_how_full(device: SoftwareDevice) -> None:
    from atom_impl.device.software import Pool

    pool = Pool(capacity_bytes=1 << 28)
    with (
        device.allocating(pool),
        pytest.raises(RuntimeError, match=r"graph pool exhausted: 536870912 bytes wanted, 0 of 268"),
    ):
        torch.empty(1 << 29, dtype=torch.uint8)


def test_the_library_is_built_once_per_source_and_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOM_CACHE_ROOT", str(tmp_path))
    built = arena.build()
    assert built.parent == tmp_path / "software_graph"
    stamp = built.stat().st_mtime_ns
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert arena.build().stat().st_mtime_ns == stamp
    assert not list(built.parent.glob("*.tmp"))


def test_a_machine_without_a_compiler_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOM_CACHE_ROOT", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(CompilerMissing, match=r"CXX=no-such-compiler\. Install one .*name it in CXX"):
        arena.build()
    broken = tmp_path / "broken-compiler"
    broken.write_text("#!/bin/sh\necho 'fatal: planted' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(CompilerMissing, match=r"could not build(.|\n)*fatal: planted"):
        arena.build()
    assert not list((tmp_path / "software_graph").glob("*.so"))


def test_a_cache_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("ATOM_CACHE_ROOT", str(blocked))
    with pytest.raises(CompilerMissing, match=r"cannot build .*ATOM_CACHE_ROOT"):
        arena.build()


def test_the_package_stands_alone() -> None:
    """It imports torch and its own base class, and nothing else of this project or its requirements."""
    code = (
        "import sys, atom_impl.device.software\n"
        "parents = ('atom_impl', 'atom_impl.device', 'atom_impl.device.base')\n"
        "own = [m for m in sys.modules if m.split('.')[0] in ('atom_impl', 'harness')]\n"
        "print([m for m in own if m not in parents and not m.startswith('atom_impl.device.software')])\n"
        "print([m for m in ('msgspec', 'filelock', 'psutil', 'pandas', 'torch._inductor') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "[]"]
