"""Communication metrics of hand-made traces, with answers worked out by hand.

Steps last one second; times in the traces are microseconds.
"""

import pickle

import pytest

from autotune.measure.overlap import (
    Collective,
    Kind,
    RankTrace,
    intersect,
    length,
    merge,
    step_communication,
    subtract,
)

Spans = list[tuple[float, float]]


def _trace(
    communication: Spans,
    compute: Spans,
    *,
    rank: int = 0,
    clock_offset_us: float = 0.0,
    kind: Kind = Kind.ALL_GATHER,
) -> RankTrace:
    return RankTrace(
        rank=rank,
        window_us=(0.0, 1e6),
        collectives=tuple(
            Collective(kind=kind, start_us=start, end_us=end, group="0")
            for start, end in communication
        ),
        compute_us=tuple(compute),
        clock_offset_us=clock_offset_us,
    )


def _values(*traces: RankTrace, weight_sync_s: float = 0.0) -> dict[str, float | None]:
    return step_communication(traces, step_s=1.0, weight_sync_s=weight_sync_s)[0]


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([], []),
        ([(5, 5)], []),
        ([(0, 10), (10, 20)], [[0, 20]]),
        ([(30, 40), (0, 10), (5, 12)], [[0, 12], [30, 40]]),
        ([(0, 100), (10, 20), (30, 40)], [[0, 100]]),
    ],
)
def test_merge_gives_sorted_intervals_that_do_not_touch(
    spans: Spans, expected: list[list[float]]
) -> None:
    assert merge(spans).tolist() == expected


@pytest.mark.parametrize(
    ("first", "second", "left", "common"),
    [
        ([(0, 10)], [], [[0, 10]], []),
        ([(0, 10)], [(0, 10)], [], [[0, 10]]),
        ([(0, 10)], [(3, 5)], [[0, 3], [5, 10]], [[3, 5]]),
        ([(0, 10), (20, 30)], [(5, 25)], [[0, 5], [25, 30]], [[5, 10], [20, 25]]),
        ([(0, 10)], [(10, 20)], [[0, 10]], []),
        ([], [(0, 10)], [], []),
    ],
)
def test_subtract_and_intersect_share_out_the_first_set(
    first: Spans, second: Spans, left: list[list[float]], common: list[list[float]]
) -> None:
    assert subtract(merge(first), merge(second)).tolist() == left
    assert intersect(merge(first), merge(second)).tolist() == common


def test_length_adds_up_the_intervals() -> None:
    assert length(merge([(0, 10), (20, 25)])) == 15


@pytest.mark.parametrize(
    ("communication", "compute", "exposed", "total"),
    [
        ([(0, 200_000)], [(200_000, 1_000_000)], 0.2, 0.2),
        ([(0, 200_000)], [(0, 1_000_000)], 0.0, 0.2),
        ([(100_000, 500_000)], [(0, 300_000)], 0.2, 0.4),
        ([(0, 400_000), (100_000, 200_000)], [(0, 100_000)], 0.3, 0.4),
        ([(0, 100_000), (100_000, 200_000)], [(0, 150_000)], 0.05, 0.2),
        ([(0, 500_000)], [(0, 200_000), (100_000, 400_000)], 0.1, 0.5),
    ],
    ids=["none hidden", "all hidden", "half hidden", "nested", "back to back", "two streams"],
)
def test_exposed_communication_is_what_compute_does_not_cover(
    communication: Spans, compute: Spans, exposed: float, total: float
) -> None:
    values = _values(_trace(communication, compute))
    assert values["exposed_comm_ratio"] == pytest.approx(exposed)
    assert values["comm_ratio"] == pytest.approx(total)
    assert values["comm_overlap_ratio"] == pytest.approx(1 - exposed / total)


def test_communication_to_compute_compares_the_two_unions() -> None:
    values = _values(_trace([(0, 200_000)], [(0, 400_000), (100_000, 500_000)]))
    assert values["comm_to_compute_ratio"] == pytest.approx(0.4)


def test_weight_sync_counts_as_exposed_communication() -> None:
    values = _values(_trace([(0, 100_000)], [(0, 1_000_000)]), weight_sync_s=0.15)
    assert values["exposed_comm_ratio"] == pytest.approx(0.15)
    assert values["comm_ratio"] == pytest.approx(0.25)
    assert values["comm_overlap_ratio"] == pytest.approx(1.0)


def test_a_late_rank_makes_the_other_wait_and_not_communicate() -> None:
    early = _trace([(0, 400_000)], [], rank=0)
    late = _trace([(300_000, 400_000)], [(0, 300_000)], rank=1)
    values = _values(early, late)
    assert values["exposed_wait_ratio"] == pytest.approx(0.3)
    assert values["exposed_comm_ratio"] == pytest.approx(0.1)
    assert values["comm_ratio"] == pytest.approx(0.1)


def test_clocks_of_the_ranks_are_aligned_before_waiting_is_split_off() -> None:
    early = _trace([(0, 400_000)], [], rank=0)
    late = _trace([(1_300_000, 1_400_000)], [], rank=1, clock_offset_us=-1_000_000)
    values = _values(early, late)
    assert values["exposed_wait_ratio"] == pytest.approx(0.3)
    assert values["exposed_comm_ratio"] == pytest.approx(0.1)


def test_the_rank_that_is_worst_off_counts() -> None:
    hidden = _trace([(0, 200_000)], [(0, 1_000_000)], rank=0)
    exposed = _trace([(0, 200_000)], [(100_000, 1_000_000)], rank=1)
    values = _values(hidden, exposed)
    assert values["exposed_comm_ratio"] == pytest.approx(0.1)
    assert values["comm_overlap_ratio"] == pytest.approx(0.5)


def test_kinds_are_matched_apart_from_each_other() -> None:
    gather = _trace([(0, 100_000)], [], rank=0)
    scatter = _trace([(500_000, 600_000)], [], rank=1, kind=Kind.REDUCE_SCATTER)
    assert _values(gather, scatter)["exposed_wait_ratio"] == 0.0


def test_different_counts_leave_waiting_absent_and_say_so() -> None:
    one = _trace([(0, 100_000)], [], rank=0)
    two = _trace([(0, 100_000), (200_000, 300_000)], [], rank=1)
    values, reasons = step_communication([one, two], step_s=1.0, weight_sync_s=0.0)
    assert values["exposed_wait_ratio"] is None
    assert "different numbers of all_gather: 1 to 2" in reasons["exposed_wait_ratio"]
    assert values["exposed_comm_ratio"] == pytest.approx(0.2)


def test_compute_alone_is_no_communication_and_no_overlap() -> None:
    values, reasons = step_communication(
        [_trace([], [(0, 500_000)])], step_s=1.0, weight_sync_s=0.0
    )
    assert values["exposed_comm_ratio"] == 0.0
    assert values["comm_overlap_ratio"] is None
    assert reasons == {"comm_overlap_ratio": "there was no communication"}


def test_communication_alone_has_no_ratio_to_compute() -> None:
    values, reasons = step_communication(
        [_trace([(0, 500_000)], [])], step_s=1.0, weight_sync_s=0.0
    )
    assert values["comm_to_compute_ratio"] is None
    assert reasons == {"comm_to_compute_ratio": "there was no compute"}


@pytest.mark.parametrize(
    ("traces", "reason"),
    [([], "no step was profiled"), ([_trace([], [])], "the profiler recorded no events")],
)
def test_without_events_all_is_absent_with_a_reason(traces: list[RankTrace], reason: str) -> None:
    values, reasons = step_communication(traces, step_s=1.0, weight_sync_s=0.1)
    assert set(values.values()) == {None}
    assert set(reasons) == set(values) and set(reasons.values()) == {reason}


def test_a_trace_survives_pickling() -> None:
    trace = _trace([(0, 10)], [(5, 20)])
    assert pickle.loads(pickle.dumps(trace)) == trace
