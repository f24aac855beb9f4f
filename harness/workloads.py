"""Seeded step streams: real text, real contexts, every bucket's edges, no two neighbouring steps alike.

A missing copy into a recorded buffer is invisible when the buffer still holds the right values from the step before.
So the streams rotate requests over rows, advance every context between rounds, and walk lengths across block
boundaries after capture.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources

from harness.engines.base import Phase, StepBatch

Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True)
class InputSet:
    """One step to compare in every arm, padded to `bucket` rows.

    Row i of the batch is row `reference_rows[i]` of the round's reference batch number `reference`; None means that
    the set is compared bit for bit only. `full` fills the bucket with other requests: run first, it leaves a real
    tail behind in pad rows.
    """

    bucket: int
    batch: StepBatch
    full: StepBatch
    reference: int | None = None
    reference_rows: tuple[int, ...] = ()

    @property
    def pad_rows(self) -> int:
        return self.bucket - self.batch.rows


@dataclass(frozen=True)
class Round:
    """What is driven from one state of the cache.

    `sets` has one input set for each bucket. `narrow` holds steps in buckets that dispatch need not choose for them
    (one row in each, for decode): only arms that take a padded size run these. `beyond` is the first size past the
    ladder. `advance` grows every context by a token once the round is over.
    """

    index: int
    sets: tuple[InputSet, ...]
    references: tuple[StepBatch, ...]
    narrow: tuple[InputSet, ...] = ()
    beyond: StepBatch | None = None
    advance: StepBatch | None = None
    vary_padding: bool = False


@dataclass(frozen=True)
class Limits:
    """The engine limits that a stream must stay inside."""

    max_num_seqs: int
    max_model_len: int
    block_size: int
    num_blocks: int


def paragraphs() -> list[str]:
    """The English prompts that come with the harness."""
    text = resources.files("harness").joinpath("prompts/english.txt").read_text(encoding="utf-8")
    return [part for part in text.split("\n\n") if part.strip()]


def byte_encoder(vocab_size: int) -> Encode:
    """For a model without a tokeniser: UTF-8 bytes, folded into the vocabulary."""
    if vocab_size < 1:
        raise ValueError(f"vocabulary of {vocab_size} tokens: must be at least 1")
    return lambda text: [byte % vocab_size for byte in text.encode()]


class Corpus:
    """Token ids of the English prompts, as streams that begin at different paragraphs."""

    def __init__(self, encode: Encode, vocab_size: int) -> None:
        self._parts = [tuple(encode(part)) for part in paragraphs()]
        if not all(self._parts):
            raise ValueError("the tokeniser turned an English paragraph into no tokens; it must return at least one id")
        top = max(max(part) for part in self._parts)
        if top >= vocab_size or min(min(part) for part in self._parts) < 0:
            raise ValueError(
                f"token id {top} lies outside the vocabulary of {vocab_size}; tokeniser and model disagree"
            )

    def __len__(self) -> int:
        return len(self._parts)

    def stream(self, start: int, length: int, skip: int = 0) -> tuple[int, ...]:
        """`length` tokens from paragraph `start` on, `skip` tokens in; the corpus is read in a circle."""
        tokens: list[int] = []
        part = start
        while len(tokens) < skip + length:
            tokens += self._parts[part % len(self._parts)]
            part += 1
        return tuple(tokens[skip : skip + length])


def edge_sizes(buckets: Sequence[int], bucket: int) -> list[int]:
    """The sizes that dispatch to `bucket`, at its edges: N, N - 1 and the smallest, which is 1 for the first bucket."""
    below = max((b for b in buckets if b < bucket), default=0)
    return [n for n in dict.fromkeys((bucket, bucket - 1, below + 1)) if below < n <= bucket]


def block_tables(lengths: Sequence[int], limits: Limits, rng: random.Random) -> list[tuple[int, ...]]:
    """Shuffled KV blocks for requests of these lengths. Raises ValueError when the cache is too small for them."""
    needs = [-(-length // limits.block_size) for length in lengths]
    if sum(needs) > limits.num_blocks:
        raise ValueError(
            f"{len(lengths)} requests of up to {max(lengths)} tokens need {sum(needs)} KV blocks and the cache has "
            f"{limits.num_blocks}; raise limits.num_blocks or lower limits.max_model_len"
        )
    free = rng.sample(range(limits.num_blocks), sum(needs))
    return [tuple(free.pop() for _ in range(need)) for need in needs]


def written_slots(batch: StepBatch, block_size: int) -> list[int]:
    """The flat cache slots (block * block_size + offset) that the step's live rows write, in row order."""
    return [
        table[position // block_size] * block_size + position % block_size
        for tokens, length, table in zip(batch.token_ids, batch.context_lens, batch.block_tables, strict=True)
        for position in range(length - len(tokens), length)
    ]


def context_slots(batch: StepBatch, block_size: int) -> list[int]:
    """The flat cache slots that are defined before the step: what its live rows own, less what they will write."""
    return [
        table[position // block_size] * block_size + position % block_size
        for tokens, length, table in zip(batch.token_ids, batch.context_lens, batch.block_tables, strict=True)
        for position in range(length - len(tokens))
    ]


def interleaved(items: Sequence[int], replays: int, main: int) -> list[int]:
    """A, B, A, C, A with `main` as A, then whatever has been visited fewer than `replays` times, in turn.

    With one replay each there is no returning: the items in turn, from `main` on.
    """
    others = [item for item in items if item != main]
    if replays == 1:
        return [main, *others]
    order = [main]
    for other in others:
        order += [other, main]
    while missing := [item for item in (*others, main) if order.count(item) < replays]:
        order += missing
    return order


class DecodeStream:
    """Teacher-forced decode: prompts are prefilled to chosen lengths and then grow by their own next token each round.

    Lengths cover the shortest context, the longest that `max_model_len` allows, and block boundaries crossed in
    mid-stream.
    """

    phase = Phase.DECODE

    def __init__(
        self,
        corpus: Corpus,
        buckets: Sequence[int],
        limits: Limits,
        *,
        rounds: int,
        seed: int,
        padded: bool,
        vary_rounds: int = 2,
    ) -> None:
        """`padded`: arm R pads to the buckets; without it every step runs in exactly its own size.

        Padding is varied in `vary_rounds` rounds, spread evenly and from the second one on.
        """
        check_buckets(buckets, limits.max_num_seqs, "limits.max_num_seqs")
        self.buckets, self.limits, self.count, self.padded = tuple(buckets), limits, rounds, padded
        self.vary = {min(1 + i * rounds // vary_rounds, rounds - 1) for i in range(vary_rounds)}
        self.requests = min(limits.max_num_seqs, max(buckets) + 1)
        rng = random.Random(seed)
        longest = self._longest()
        self.lengths = self._first_lengths(longest)
        self.tokens = [corpus.stream(i + seed % len(corpus), longest) for i in range(self.requests)]
        self.tables = block_tables([n + rounds for n in self.lengths], limits, rng)

    def _longest(self) -> int:
        """Tokens that a request can hold when every request takes an equal share of the cache."""
        share = self.limits.num_blocks // self.requests * self.limits.block_size
        longest = min(self.limits.max_model_len, share)
        if longest <= self.count:
            raise ValueError(
                f"{self.requests} requests cannot grow by {self.count} tokens: max_model_len is "
                f"{self.limits.max_model_len} and each one's share of the cache {share} tokens; "
                "raise limits.num_blocks or lower numerics.input_sets"
            )
        return longest

    def _first_lengths(self, longest: int) -> list[int]:
        last = longest - self.count  # may still grow through every round
        lengths = []
        for i in range(self.requests):
            block = 1 + i % max(1, longest // self.limits.block_size - 1)
            crossing = block * self.limits.block_size - (1 + i % max(1, self.count - 1))
            lengths.append({1: last, 2: 1}.get(i, min(last, max(1, crossing))))
        return lengths

    def contexts(self) -> Iterator[StepBatch]:
        """The prefills that build every request's context, one request a step."""
        for i, length in enumerate(self.lengths):
            yield StepBatch(Phase.PREFILL, (self.tokens[i][:length],), (length,), (self.tables[i],))

    def rounds(self) -> Iterator[Round]:
        everyone = tuple(range(self.requests))
        for t in range(self.count):
            sizes = [self._size(t, bucket) for bucket in self.buckets]
            sets = tuple(
                self._set(t, b, size, bucket if self.padded else size)
                for b, (bucket, size) in enumerate(zip(self.buckets, sizes, strict=True))
            )
            narrow = tuple(self._set(t, b, 1, bucket) for b, bucket in enumerate(self.buckets) if bucket > 1)
            beyond = max(self.buckets) + 1
            yield Round(
                index=t,
                sets=sets,
                references=(self._batch(t, everyone),),
                narrow=narrow if t in self.vary else (),
                beyond=self._batch(t, everyone[:beyond]) if t in self.vary and beyond <= self.requests else None,
                advance=self._batch(t, everyone),
                vary_padding=t in self.vary,
            )

    def _size(self, t: int, bucket: int) -> int:
        sizes = edge_sizes(self.buckets, bucket)
        return sizes[t % len(sizes)]

    def _set(self, t: int, b: int, size: int, bucket: int) -> InputSet:
        # Neighbouring buckets, and the batch of everyone, start at other requests: no row repeats its last occupant.
        start = 1 + (b + t) % max(1, self.requests - 1)
        who = tuple((start + i) % self.requests for i in range(size))
        others = tuple((start + 1 + i) % self.requests for i in range(bucket))
        return InputSet(bucket, self._batch(t, who), self._batch(t, others), 0, who)

    def _batch(self, t: int, who: Sequence[int]) -> StepBatch:
        return StepBatch(
            Phase.DECODE,
            tuple((self.tokens[i][self.lengths[i] + t],) for i in who),
            tuple(self.lengths[i] + t + 1 for i in who),
            tuple(self.tables[i] for i in who),
        )


class PrefillStream:
    """Whole prompts, cut so that a step's rows meet each token bucket at its edges. Every step has fresh blocks."""

    phase = Phase.PREFILL

    def __init__(
        self,
        corpus: Corpus,
        buckets: Sequence[int],
        limits: Limits,
        *,
        rounds: int,
        seed: int,
        padded: bool,
        reference_every: int = 1,
    ) -> None:
        check_buckets(buckets, limits.max_num_seqs * limits.max_model_len, "max_num_seqs * max_model_len tokens")
        self.corpus, self.buckets, self.limits = corpus, tuple(buckets), limits
        self.count, self.padded, self.reference_every = rounds, padded, reference_every
        self.rng, self.seed = random.Random(seed), seed

    def contexts(self) -> Iterator[StepBatch]:
        """None: a prompt brings its own context."""
        return iter(())

    def rounds(self) -> Iterator[Round]:
        vary = min(1, self.count - 1)
        past = max(self.buckets) + 1
        room = past <= min(self.limits.max_num_seqs * self.limits.max_model_len, self._cache_tokens())
        for t in range(self.count):
            sets: list[InputSet] = []
            references: list[StepBatch] = []
            for bucket in self.buckets:
                size = edge_sizes(self.buckets, bucket)[t % len(edge_sizes(self.buckets, bucket))]
                batch = self._batch(t, size)
                wanted = t % self.reference_every == 0
                sets.append(
                    InputSet(
                        bucket if self.padded else size,
                        batch,
                        self._batch(t, bucket),
                        len(references) if wanted else None,
                        tuple(range(size)) if wanted else (),
                    )
                )
                references += [batch] if wanted else []
            yield Round(
                index=t,
                sets=tuple(sets),
                references=tuple(references),
                narrow=self._narrow(t) if t == vary and not self.padded else (),
                beyond=self._batch(t, past) if t == 0 and room else None,
                vary_padding=t == vary,
            )

    def _narrow(self, t: int) -> tuple[InputSet, ...]:
        """One row short of each size: the padding that a mode without graphs would otherwise never show."""
        rng = random.Random(self.seed + 1 + t)  # of its own: a mode with graphs must meet the same prompts after it
        sizes = [n for n in self.buckets if n > 1]
        return tuple(InputSet(n, self._batch(t, n - 1, rng), self._batch(t, n, rng)) for n in sizes)

    def _cache_tokens(self) -> int:
        return (self.limits.num_blocks - self.limits.max_num_seqs) * self.limits.block_size

    def _batch(self, t: int, rows: int, rng: random.Random | None = None) -> StepBatch:
        rng = rng or self.rng
        fewest = -(-rows // self.limits.max_model_len)
        requests = min(rows, self.limits.max_num_seqs, max(fewest, 1 + rng.randrange(3)))
        cuts = self._cuts(rows, requests, rng)
        tables = block_tables(cuts, self.limits, rng)
        streams = tuple(self.corpus.stream(rng.randrange(len(self.corpus)), n, skip=rng.randrange(8)) for n in cuts)
        return StepBatch(Phase.PREFILL, streams, tuple(cuts), tuple(tables))

    def _cuts(self, rows: int, requests: int, rng: random.Random) -> list[int]:
        """Random prompt lengths that add up to `rows`, none above `max_model_len`."""
        cuts = []
        for left in range(requests, 0, -1):
            low = max(1, rows - (left - 1) * self.limits.max_model_len)
            high = min(self.limits.max_model_len, rows - (left - 1))
            cuts.append(rng.randint(low, high) if left > 1 else rows)
            rows -= cuts[-1]
        return cuts


Stream = DecodeStream | PrefillStream


def check_buckets(buckets: Sequence[int], limit: int, rule: str) -> None:
    """Raises ValueError for an empty, unsorted, duplicate, non-positive or unreachable bucket."""
    if not buckets:
        raise ValueError("no buckets to drive: give the cell a ladder (decode) or the profile prefill_sizes (prefill)")
    if list(buckets) != sorted(set(buckets)) or buckets[0] < 1:
        raise ValueError(f"buckets {list(buckets)}: must be positive, ascending and without duplicates")
    if buckets[-1] > limit:
        raise ValueError(
            f"bucket {buckets[-1]} cannot be filled: {rule} allows {limit}; lower the bucket or raise the limit"
        )
