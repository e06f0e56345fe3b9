"""Communication metrics of hand-made traces, with answers worked out by hand.

Steps last one second; times in the traces are microseconds. One real trace was recorded by
``tests/measure/test_kineto.py``: its numbers were counted apart, in quarters of a microsecond.
"""

import json
from pathlib import Path

import pytest

from autotune.measure.communication import phase_communication, step_communication
from autotune.measure.traces import Collective, Kind, RankTrace

RECORDED = Path(__file__).parents[1] / "data" / "fsdp2_step_gloo_2_ranks.json"

Spans = list[tuple[float, float]]


def _trace(
    communication: Spans,
    compute: Spans,
    *,
    rank: int = 0,
    clock_offset_us: float = 0.0,
    kind: Kind = Kind.ALL_GATHER,
    group: str | None = "0",
    group_size: int | None = None,
    num_bytes: int | None = None,
) -> RankTrace:
    return RankTrace(
        rank=rank,
        window_us=(0.0, 1e6),
        collectives=tuple(
            Collective(
                kind=kind,
                start_us=start,
                end_us=end,
                group=group,
                group_size=group_size,
                num_bytes=num_bytes,
            )
            for start, end in communication
        ),
        compute_us=tuple(compute),
        clock_offset_us=clock_offset_us,
    )


def _values(*traces: RankTrace, weight_sync_s: float = 0.0) -> dict[str, float | None]:
    return step_communication(traces, step_s=1.0, weight_sync_s=weight_sync_s)[0]


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


def test_collectives_of_a_group_that_is_not_known_are_not_split() -> None:
    early = _trace([(0, 400_000)], [], rank=0, group=None)
    late = _trace([(300_000, 400_000)], [], rank=1, group=None)
    values, reasons = step_communication([early, late], step_s=1.0, weight_sync_s=0.0)
    assert values["exposed_comm_ratio"] == pytest.approx(0.4)
    assert reasons["exposed_wait_ratio"] == "the process groups of 2 collectives are not known"


def test_a_rank_of_the_group_without_a_trace_leaves_waiting_absent() -> None:
    traces = [_trace([(0, 100_000)], [], rank=rank, group_size=4) for rank in range(2)]
    values, reasons = step_communication(traces, step_s=1.0, weight_sync_s=0.0)
    assert values["exposed_wait_ratio"] is None
    assert reasons["exposed_wait_ratio"] == "2 of the 4 ranks of group '0' recorded all_gather"


def test_groups_are_matched_apart_from_each_other() -> None:
    groups = [
        _trace([(start, start + 100_000)], [], rank=rank, group=group, group_size=2)
        for rank, (group, start) in enumerate([("a", 0), ("a", 0), ("b", 500_000), ("b", 500_000)])
    ]
    assert _values(*groups)["exposed_wait_ratio"] == 0.0


def test_a_collective_left_before_another_rank_joins_means_that_clocks_are_apart() -> None:
    first = _trace([(0, 100_000)], [], rank=0)
    second = _trace([(300_000, 400_000)], [], rank=1)
    values, reasons = step_communication([first, second], step_s=1.0, weight_sync_s=0.0)
    assert values["exposed_comm_ratio"] == pytest.approx(0.1)
    assert "joined all_gather 200000 us after another had left it" in reasons["exposed_wait_ratio"]


def test_a_broadcast_may_be_left_before_another_rank_joins() -> None:
    root = _trace([(0, 100_000)], [], rank=0, kind=Kind.BROADCAST)
    other = _trace([(300_000, 400_000)], [], rank=1, kind=Kind.BROADCAST)
    values = _values(root, other)
    assert values["exposed_wait_ratio"] == pytest.approx(0.1)
    assert values["exposed_comm_ratio"] == pytest.approx(0.1)


def test_load_imbalance_is_the_largest_compute_over_the_mean() -> None:
    values = _values(_trace([], [(0, 300_000)], rank=0), _trace([], [(0, 100_000)], rank=1))
    assert values["compute_imbalance_ratio"] == pytest.approx(0.5)


def test_idle_is_neither_compute_nor_transfer_nor_waiting() -> None:
    early = _trace([(100_000, 500_000)], [(0, 100_000)], rank=0)
    late = _trace([(400_000, 500_000)], [(0, 200_000)], rank=1)
    assert _values(early, late)["idle_ratio"] == pytest.approx(0.7)


def test_transfers_of_a_kind_are_counted_once_where_they_overlap() -> None:
    values = _values(_trace([(0, 200_000), (100_000, 300_000)], [(0, 300_000)]))
    assert values["comm_all_gather_s"] == pytest.approx(0.3)


def test_kinds_that_did_not_occur_are_not_listed() -> None:
    values = _values(_trace([(0, 200_000)], []))
    assert [name for name in values if name.startswith("comm_") and name.endswith("_s")] == [
        "comm_all_gather_s",
        "comm_all_gather_bus_gb_per_s",
    ]


@pytest.mark.parametrize(
    ("kind", "gb_per_s"),
    [
        (Kind.ALL_GATHER, 15.0),
        (Kind.REDUCE_SCATTER, 15.0),
        (Kind.ALL_REDUCE, 30.0),
        (Kind.BROADCAST, 20.0),
    ],
)
def test_bus_bandwidth_leaves_waiting_out(kind: Kind, gb_per_s: float) -> None:
    # 2e9 bytes in 0.1 s among four ranks, the first of which came 0.3 s too early.
    traces = [
        _trace([(start, 400_000)], [], rank=rank, kind=kind, group_size=4, num_bytes=2 * 10**9)
        for rank, start in enumerate([0, 300_000, 300_000, 300_000])
    ]
    assert _values(*traces)[f"comm_{kind.value}_bus_gb_per_s"] == pytest.approx(gb_per_s)


@pytest.mark.parametrize(
    ("trace", "reason"),
    [
        (_trace([(0, 10)], [], group_size=1), "the sizes of the collectives are not known"),
        (
            _trace([(0, 10)], [], group=None, group_size=2, num_bytes=8),
            "transfers could not be told from waiting",
        ),
    ],
)
def test_an_absent_bandwidth_has_its_reason(trace: RankTrace, reason: str) -> None:
    values, reasons = step_communication([trace], step_s=1.0, weight_sync_s=0.0)
    assert values["comm_all_gather_bus_gb_per_s"] is None
    assert reasons["comm_all_gather_bus_gb_per_s"] == reason


def test_a_phase_gets_its_part_of_what_crosses_its_edges() -> None:
    trace = _trace([(100_000, 300_000)], [(250_000, 600_000)], group_size=1, num_bytes=10**9)
    phases = phase_communication(
        [trace], {"old_log_prob": (0.0, 200_000.0), "update_actor": (200_000.0, 700_000.0)}
    )
    first, second = phases["old_log_prob"][0], phases["update_actor"][0]
    assert (first["exposed_comm_ratio"], first["comm_to_compute_ratio"]) == (0.5, None)
    assert second["exposed_comm_ratio"] == pytest.approx(0.1)
    assert second["comm_ratio"] == pytest.approx(0.2)
    assert second["idle_ratio"] == pytest.approx(0.2)


def test_bytes_of_a_collective_are_shared_out_among_phases_by_time() -> None:
    traces = [
        _trace([(0, 400_000)], [], rank=rank, group_size=2, num_bytes=4 * 10**9)
        for rank in range(2)
    ]
    phases = phase_communication(traces, {"early": (0.0, 100_000.0), "late": (1e5, 4e5)})
    bandwidths = [values["comm_all_gather_bus_gb_per_s"] for values, _ in phases.values()]
    assert bandwidths == pytest.approx([5.0, 5.0])


def test_waiting_that_began_in_an_earlier_phase_is_split_where_the_last_rank_joins() -> None:
    early = _trace([(0, 400_000)], [], rank=0)
    late = _trace([(300_000, 400_000)], [], rank=1)
    values, _ = phase_communication([early, late], {"late": (200_000.0, 400_000.0)})["late"]
    assert values["exposed_wait_ratio"] == pytest.approx(0.5)
    assert values["exposed_comm_ratio"] == pytest.approx(0.5)


def test_a_phase_without_unmatched_collectives_has_its_waiting() -> None:
    trace = _trace([(0, 100_000)], [(500_000, 600_000)], group=None)
    phases = phase_communication([trace], {"first": (0.0, 2e5), "second": (5e5, 6e5)})
    assert phases["first"][0]["exposed_wait_ratio"] is None
    assert phases["second"][0]["exposed_wait_ratio"] == 0.0


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
    assert reasons["comm_to_compute_ratio"] == "there was no compute"
    assert reasons["compute_imbalance_ratio"] == "there was no compute"


@pytest.mark.parametrize(
    ("traces", "reason"),
    [([], "no step was profiled"), ([_trace([], [])], "the profiler recorded no events")],
)
def test_without_events_all_is_absent_with_a_reason(traces: list[RankTrace], reason: str) -> None:
    values, reasons = step_communication(traces, step_s=1.0, weight_sync_s=0.1)
    assert set(values.values()) == {None}
    assert set(reasons) == set(values) and set(reasons.values()) == {reason}


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("exposed_comm_ratio", 0.00568275),
        ("exposed_wait_ratio", 0.30275275),
        ("comm_ratio", 0.00568275),
        ("idle_ratio", 0.307529),
    ],
)
def test_a_recorded_step_has_the_lengths_that_were_counted(name: str, seconds: float) -> None:
    traces = [RankTrace.from_dict(entry) for entry in json.loads(RECORDED.read_text())]
    values, reasons = step_communication(traces, step_s=1.0, weight_sync_s=0.0)
    assert values[name] == pytest.approx(seconds, abs=1e-6)
    assert reasons == {}


def test_recorded_collectives_are_those_of_fsdp2() -> None:
    # Three layers of 64 x 64 weights with bias in fp32: gathered twice each, reduced once.
    for entry in json.loads(RECORDED.read_text()):
        kinds = [collective.kind for collective in RankTrace.from_dict(entry).collectives]
        assert (kinds.count(Kind.ALL_GATHER), kinds.count(Kind.REDUCE_SCATTER)) == (6, 3)
