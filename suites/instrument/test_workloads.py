"""Steps that look alike hide missing copies, and lengths that never cross a block hide frozen tables."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.engines.base import Phase, StepBatch
from harness.workloads import (
    Corpus,
    DecodeStream,
    Limits,
    PrefillStream,
    Stream,
    byte_encoder,
    check_buckets,
    context_slots,
    edge_sizes,
    interleaved,
    paragraphs,
    written_slots,
)

CORPUS = Corpus(byte_encoder(256), 256)
LIMITS = Limits(max_num_seqs=5, max_model_len=128, block_size=16, num_blocks=56)


def decode(
    buckets: tuple[int, ...] = (1, 2, 4), rounds: int = 8, *, padded: bool = True, limits: Limits = LIMITS
) -> DecodeStream:
    return DecodeStream(CORPUS, buckets, limits, rounds=rounds, seed=3, padded=padded)


def prefill(buckets: tuple[int, ...] = (16, 64), rounds: int = 6, *, padded: bool = True) -> PrefillStream:
    return PrefillStream(CORPUS, buckets, LIMITS, rounds=rounds, seed=3, padded=padded)


def batches(stream: Stream) -> list[StepBatch]:
    steps = list(stream.contexts())
    for current in stream.rounds():
        steps += [s.batch for s in (*current.sets, *current.narrow)] + [s.full for s in current.sets]
        steps += [batch for batch in (*current.references, current.beyond, current.advance) if batch is not None]
    return steps


def test_the_prompts_are_english_paragraphs_long_enough_for_a_context() -> None:
    parts = paragraphs()
    assert len(parts) >= 16
    assert all(len(part.split()) >= 50 and part.isascii() for part in parts if not part.startswith("def "))


STREAMS = ["decode", "decode unpadded", "prefill", "prefill unpadded"]


@pytest.mark.parametrize("stream", [decode(), decode(padded=False), prefill(), prefill(padded=False)], ids=STREAMS)
def test_every_step_stays_inside_the_limits_and_owns_its_slots_alone(stream: Stream) -> None:
    for batch in batches(stream):
        assert 1 <= len(batch.token_ids) <= LIMITS.max_num_seqs
        assert max(batch.context_lens) <= LIMITS.max_model_len
        slots = [*written_slots(batch, 16), *context_slots(batch, 16)]
        assert len(set(slots)) == len(slots) == sum(batch.context_lens)
        assert all(0 <= slot < LIMITS.num_blocks * 16 for slot in slots)
        assert all(0 <= token < 256 for tokens in batch.token_ids for token in tokens)


def test_a_decode_step_feeds_each_request_its_prompts_own_next_token() -> None:
    stream = decode()
    grown = [list(batch.token_ids[0]) for batch in stream.contexts()]
    for current in stream.rounds():
        assert current.advance is not None
        for request, (tokens, length) in enumerate(
            zip(current.advance.token_ids, current.advance.context_lens, strict=True)
        ):
            grown[request] += tokens
            assert len(grown[request]) == length
    assert grown == [list(stream.tokens[i][: len(grown[i])]) for i in range(stream.requests)]


def test_contexts_cover_the_shortest_the_longest_and_a_block_boundary_crossed_after_capture() -> None:
    lengths = [current.advance.context_lens for current in decode().rounds() if current.advance]
    assert min(map(min, lengths)) == 2
    assert max(map(max, lengths)) == LIMITS.max_model_len
    tracks = list(zip(*lengths, strict=True))
    crossed = [any(a % 16 == 0 for a in track[:-1]) for track in tracks]
    assert sum(crossed) >= 3


def test_no_row_holds_the_same_request_in_two_neighbouring_buckets() -> None:
    for current in decode().rounds():
        assert current.advance is not None
        steps = [current.advance, *(s.batch for s in current.sets)]
        for one, two in itertools.combinations(steps, 2):
            assert all(a != b for a, b in zip(one.block_tables, two.block_tables, strict=False))


def test_each_bucket_is_driven_full_and_one_short_and_at_its_smallest() -> None:
    sizes = {(s.bucket, s.batch.rows) for current in decode((2, 5)).rounds() for s in current.sets}
    assert sizes == {(2, 2), (2, 1), (5, 5), (5, 4), (5, 3)}


def test_the_first_size_past_the_ladder_is_driven_where_the_scheduler_can_make_it() -> None:
    assert {current.beyond.rows for current in decode().rounds() if current.beyond} == {5}
    assert not any(current.beyond for current in decode((1, 5)).rounds())


def test_without_graphs_no_set_is_padded_but_narrow_ones_still_are() -> None:
    rounds = list(decode(padded=False).rounds())
    assert all(s.pad_rows == 0 for current in rounds for s in current.sets)
    assert any(s.pad_rows > 0 for current in rounds for s in current.narrow)


def test_prefill_rows_meet_each_bucket_at_its_edges() -> None:
    sizes = {(s.bucket, s.batch.rows) for current in prefill().rounds() for s in current.sets}
    assert sizes == {(16, 16), (16, 15), (16, 1), (64, 64), (64, 63), (64, 17)}
    assert all(batch.phase is Phase.PREFILL and batch.token_ids != () for batch in batches(prefill()))


def test_the_same_seed_gives_the_same_stream_and_another_seed_another() -> None:
    assert batches(prefill()) == batches(prefill())
    other = PrefillStream(CORPUS, (16, 64), LIMITS, rounds=6, seed=4, padded=True)
    assert batches(prefill()) != batches(other)


@given(st.integers(1, 6), st.integers(2, 4))
def test_interleaving_returns_to_the_main_bucket_after_each_other_one(count: int, replays: int) -> None:
    order = interleaved(range(count), replays, main=0)
    assert order[0] == 0
    assert all(order.count(item) >= replays for item in range(count))
    others = [i for i, item in enumerate(order[: 2 * count - 1]) if item != 0]
    assert others == list(range(1, 2 * count - 1, 2))


def test_one_replay_each_visits_every_bucket_once_in_turn() -> None:
    assert interleaved([0, 1, 2], 1, main=1) == [1, 0, 2]


@settings(deadline=None, max_examples=60)
@given(st.sets(st.integers(1, 24), min_size=1, max_size=6), st.integers(1, 9))
def test_any_ladder_that_fits_gives_sets_that_dispatch_to_their_own_bucket(ladder: set[int], rounds: int) -> None:
    buckets = tuple(sorted(ladder))
    limits = Limits(max_num_seqs=24, max_model_len=32, block_size=8, num_blocks=128)
    for current in decode(buckets, rounds, limits=limits).rounds():
        for bucket, s in zip(buckets, current.sets, strict=True):
            assert min(b for b in buckets if b >= s.batch.rows) == bucket == s.bucket
            assert s.full.rows == bucket


def test_edge_sizes_of_the_first_bucket_include_a_single_row() -> None:
    assert edge_sizes([8, 16], 8) == [8, 7, 1]
    assert edge_sizes([8, 16], 16) == [16, 15, 9]


@pytest.mark.parametrize("buckets", [[], [2, 1], [1, 1], [0, 1]])
def test_a_ladder_that_cannot_be_driven_is_refused(buckets: list[int]) -> None:
    with pytest.raises(ValueError, match="buckets"):
        check_buckets(buckets, 8, "limit")


def test_a_bucket_that_no_batch_can_fill_is_refused_with_the_limit() -> None:
    with pytest.raises(ValueError, match=r"bucket 8 cannot be filled: limits.max_num_seqs allows 5"):
        decode((1, 8))


def test_a_cache_too_small_for_the_contexts_is_refused_with_a_way_out() -> None:
    small = Limits(max_num_seqs=5, max_model_len=128, block_size=4, num_blocks=10)
    with pytest.raises(ValueError, match="cannot grow by 8 tokens"):
        decode(limits=small)


def test_a_tokeniser_that_leaves_the_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="outside the vocabulary of 64"):
        Corpus(byte_encoder(256), 64)
