"""For each kind of fault its siblings: other faults of the same kind, the check that catches them, and what shows it.

A mutant is one instance. The copy that was left out was of the lengths, the check looked at the lengths, and the block
table beside them went stale unseen. So each kind lists what else can go wrong in the same way, and a name that no
longer exists fails a test.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sibling:
    """`check` says how the whole kind is seen. `shown_by` are planted faults by file name, or tests as `path::name`
    below `suites/`; it is empty where nothing shows it, and `check` then says why.
    """

    kind: str
    faults: str
    check: str
    shown_by: tuple[str, ...] = ()


SIBLINGS = (
    Sibling(
        "FROZEN",
        "any host value of a step: lengths, live rows, a table's width",
        "G1 and G2.kv over fresh input sets whose every host value differs from those of the recording",
        ("frozen_host_length", "frozen_live_rows"),
    ),
    Sibling(
        "FROZEN",
        "work that the recording does not see: another library, a launch by hand",
        "the recorder refuses host access to device memory; G1 where it cannot",
        ("frozen_outside_the_log",),
    ),
    Sibling(
        "STALE",
        "the copy of any one staged leaf left out, claimed or not",
        "a walk over every staged buffer: audit.staging counts the copies, G1 and G2 see the values",
        ("stale_lengths", "mutants/test_every_leaf.py::test_a_copy_that_is_left_out_is_seen_whichever_leaf_it_is"),
    ),
    Sibling(
        "STALE",
        "a tail, an output row or a cached intermediate of the step before",
        "pad rows filled in five ways, outputs poisoned before each replay, full and half buckets in turn",
        ("stale_tail", "stale_output_row", "stale_rotary_cache"),
    ),
    Sibling(
        "MOVED",
        "any input leaf at another address, nested ones included",
        "the replay compares every leaf of the metadata; without that, G1",
        (
            "moved_leaf",
            "moved_leaf_unchecked",
            "mutants/test_every_leaf.py::test_a_leaf_at_another_address_is_refused_or_gives_other_bits",
        ),
    ),
    Sibling(
        "MOVED",
        "weights, and the buffer that callers read",
        "weights are compared at the first replay; outputs are poisoned before each",
        ("moved_weights", "moved_output"),
    ),
    Sibling(
        "LIFETIME",
        "a block of the pool taken or given back between replays, by a region or by a plain step",
        "audit.pool: the allocator's own account of every step of arms R and C, whatever the values",
        ("lifetime_region_in_pool", "lifetime_pool_left_open", "instrument/test_gpu_pools.py"),
    ),
    Sibling(
        "LIFETIME",
        "what is read after a replay lies in the pool, or was freed outside it",
        "audit.output by address; the software graph watches every outside tensor",
        ("lifetime_output_view", "lifetime_workspace"),
    ),
    Sibling(
        "LIFETIME",
        "a sequence of buckets that only one order of captures survives",
        "random sequences of captures, replays, held outputs and churn, bit for bit",
        ("correctness/test_replay_machine.py::test_random_sequences_equal_the_plain_runs_bit_for_bit",),
    ),
    Sibling(
        "LIFETIME",
        "anything of the pool that a recording holds, so that no other bucket can use it",
        "closed.pool: the pool holds little more than its largest bucket",
        ("lifetime_strong", "correctness/test_bucket_pool.py::test_the_pool_costs_what_the_largest_bucket_costs"),
    ),
    Sibling(
        "PADDING",
        "any write of a pad row, and any read of one",
        "every slot that no live row owns is compared, and set to NaN; pad rows are NaN, extreme and stale in turn",
        ("padding_parked_slot", "padding_negative_slot", "padding_bucket_reduction", "padding_masked_by_zero"),
    ),
    Sibling(
        "LADDER",
        "any size that goes to another bucket, to none, or eagerly without a reason",
        "dispatch.* enumerates every batch of 1 to N, and the recordings are compared with those asked for",
        ("ladder_bisect_right", "ladder_lost_bucket", "ladder_requests_for_tokens", "ladder_silent_eager"),
    ),
    Sibling("RANKS", "ranks that disagree on bucket, mode or collective", "none: the engine runs one rank"),
    Sibling(
        "CAPTURE",
        "any operation that reads device data on the host, syncs, tunes, collects or leaves a stream open",
        "deny rules by operator and by call, with the place; on a GPU the driver's own refusal",
        (
            "capture_item",
            "capture_boolean_index",
            "capture_unjoined_stream",
            "correctness/software_graph/test_operators.py::test_what_a_gpu_cannot_record_is_refused_with_the_place",
        ),
    ),
    Sibling(
        "REARM",
        "anything but the cache's rows that one replay hands to the next",
        "audit.rearm over all that a recording reads before it writes; replays in threes",
        ("rearm_counter", "rearm_accumulator", "correctness/software_graph/test_rearm.py"),
    ),
    Sibling(
        "RACE",
        "a staged buffer rewritten before its copy has run, on any path of the runner",
        "copies that are late by n ticks, and the fence left out of each path in turn",
        ("race_staging", "correctness/test_staging_race.py::test_a_gate_that_one_path_of_the_runner_lacks_is_found"),
    ),
    Sibling(
        "RACE",
        "two streams that touch one tensor without an edge between them",
        "the recorder's edges over every pair of launches",
        ("race_side_stream",),
    ),
    Sibling(
        "CACHEKEY",
        "a setting, an operator or a source that the key leaves out",
        "every setting alone is changed and must change the identity; cold and warm starts must have the same bits",
        (
            "cachekey_position",
            "contract/test_config_identity.py::test_every_setting_that_changes_generated_code_changes_the_identity_and_no_two_alike",
            "instrument/test_cache_bits.py",
        ),
    ),
    Sibling(
        "CACHEKEY",
        "a key that never repeats",
        "closed.compiles: no more compiles than distinct pieces, and none in a second process",
        ("cachekey_counter", "contract/test_compiler_manager.py::test_a_second_process_compiles_nothing"),
    ),
    Sibling(
        "SPECIALISE",
        "a guard on any size of any argument",
        "the dynamic dimensions are compared with those that were declared, before anything is served",
        ("specialise_one_row", "specialise_loop"),
    ),
    Sibling(
        "SPECIALISE",
        "a library's or a helper's compile in service",
        "torch's own counters from the capture to the last step, through sizes that no bucket has",
        ("specialise_first_seen",),
    ),
    Sibling(
        "CONTRACT",
        "an operator's schema, fake or strides that its body does not keep",
        "the compiled call checks sizes and strides against the promise; G3 sees what was not written",
        ("contract_fake_strides", "contract_undeclared_write"),
    ),
    Sibling(
        "NUMERICS",
        "any tensor of any layer off by more than the compiler's rounding",
        "G3 by row beside a float64 reference, in the serving type and in float32; G5 and G6 on the logits",
        ("numerics_epsilon", "numerics_one_layer"),
    ),
    Sibling(
        "STEPCOST",
        "copies and launches that nobody claims, in one arm or in all",
        "audit.* counts from outside: copies by bytes and place, launches, nodes, operations",
        ("stepcost_clone", "stepcost_clone_everywhere", "stepcost_second_upload", "stepcost_launched_twice"),
    ),
    Sibling(
        "STEPCOST",
        "time that no count shows: a sleep, a spin, a slower kernel",
        "latency.waits and latency.graph without a baseline, the paired comparison with one",
        ("stepcost_sleep", "stepcost_spin", "instrument/test_selftest.py"),
    ),
    Sibling(
        "CAPCOST",
        "memory that a capture, a bucket or a replay keeps",
        "memory.steps to the byte, closed.pool and closed.pools by the graphs' own word",
        ("capcost_leak", "capcost_pool_each", "capcost_workspace"),
    ),
    Sibling(
        "CAPCOST",
        "recordings that nobody asked for",
        "closed.recordings: those made are those asked for",
        ("capcost_unreachable",),
    ),
    Sibling(
        "AMDRT",
        "a runtime that drops work: in the first launch, in one process of five, in one launch of five",
        "the first replay is judged apart, and as many fresh processes run as the profile says, with the bound printed",
        ("amdrt_first_launch", "amdrt_copy_hole"),
    ),
    Sibling(
        "HARNESS",
        "a figure, record or comparison that is not there and passes",
        "expected, executed, stored and reported must be equal, and NaN or nothing is a failure",
        ("harness_lost_record", "harness_nan_figure", "harness_nothing_driven", "instrument/test_verdicts.py"),
    ),
    Sibling(
        "HARNESS",
        "a timer that is wrong: no wait, another stream, a clock that stands",
        "the calibration on work of known length, without which nothing is timed",
        ("harness_stopped_clock", "instrument/test_calibration.py"),
    ),
)
