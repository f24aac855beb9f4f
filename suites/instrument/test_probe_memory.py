"""Strong references made the pool the sum of all buckets; capture passed and the KV cache shrank."""

from __future__ import annotations

from typing import Any

import pytest

from harness.probes.base import ProbeResult
from harness.probes.memory import MemoryProbe
from harness.records import Status
from suites.instrument.probe_bench import context_of, failed, gate
from suites.instrument.toy_session import ToySession


def with_pool(**sizes: Any) -> type[ToySession]:
    def capture(self: ToySession) -> dict[str, Any]:
        return dict(ToySession.capture(self)) | sizes

    return type("Pool", (ToySession,), {"capture": capture})


def measured(session_type: type[ToySession] = ToySession, **changes: Any) -> ProbeResult:
    return MemoryProbe().run(context_of(session_type, **changes))


def test_a_pool_that_is_the_sum_of_its_buckets_fails_with_both_sizes() -> None:
    result = measured(with_pool(pool_bytes=7 << 20, pool_bytes_largest=4 << 20))
    assert failed(result) == {"closed.pool"}
    assert "7.00 MiB for 3 buckets, 4.00 MiB after the largest alone" in gate(result, "closed.pool").message


def test_hand_off_buffers_may_add_a_little() -> None:
    assert failed(measured(with_pool(pool_bytes=115, pool_bytes_largest=100))) == set()
    assert failed(measured(with_pool(pool_bytes=116, pool_bytes_largest=100))) == {"closed.pool"}


@pytest.mark.parametrize("nothing", [0, None, float("nan"), float("inf")])
def test_a_size_that_is_missing_or_no_number_is_a_failure(nothing: Any) -> None:
    assert failed(measured(with_pool(pool_bytes=nothing))) == {"closed.pool"}
    assert failed(measured(with_pool(pool_bytes_largest=nothing))) == {"closed.pool"}


def test_a_pool_as_large_as_its_largest_bucket_passes() -> None:
    assert gate(measured(), "closed.pool").status is Status.PASS


def test_a_pool_for_every_bucket_is_named_with_its_buckets() -> None:
    pools = {
        "pools": {1: ["pool 2"], 2: ["pool 1"], 4: ["pool 1"]},
        "pool_sizes": {"pool 1": 3 << 20, "pool 2": 1 << 20},
    }
    result = measured(with_pool(**pools, pool_bytes=3 << 20, pool_bytes_largest=3 << 20))
    assert failed(result) == {"closed.pools"}
    message = gate(result, "closed.pools").message
    assert "2 pools (1.00 MiB for bucket 1, 3.00 MiB for bucket 2 and 4), 4.00 MiB in all" in message
    assert "claims 3.00" in message


def test_a_claim_larger_than_the_one_pool_fails() -> None:
    one = {"pools": {"1": ["pool 1"], "2": ["pool 1"]}, "pool_sizes": {"pool 1": 100}}
    assert failed(measured(with_pool(**one, pool_bytes=100, pool_bytes_largest=100))) == set()
    assert failed(measured(with_pool(**one, pool_bytes=101, pool_bytes_largest=100))) == {"closed.pools"}


def test_one_bucket_alone_has_nothing_to_share() -> None:
    assert gate(measured(ladder=[4]), "closed.pool").status is Status.REPORT


def test_a_mode_without_graphs_has_no_pool() -> None:
    assert gate(measured(mode="NONE"), "closed.pool").status is Status.NOT_APPLICABLE
