"""A step's metrics from what two ranks measured, worked out by hand."""

from typing import Any

import pytest

from autotune.measure.traces import Collective, Kind, RankTrace
from autotune.verl_bridge.consistency_probe import ProbeOfRank
from autotune.verl_bridge.step_report import (
    RankStep,
    divergence_metrics,
    probe_metrics,
    replayed,
    step_metrics,
    update_only_metrics,
)
from autotune.verl_bridge.worker_phases import PhaseOfRank

GIB = 2**30


def phase(start_us: float, end_us: float, gib: int = 1) -> PhaseOfRank:
    return PhaseOfRank(
        span_us=(start_us, end_us), allocated_bytes=gib * GIB, reserved_bytes=2 * gib * GIB
    )


def rank(**changes: Any) -> RankStep:
    values: dict[str, Any] = {
        "k_nats": 1e-6,
        "peak_bytes": 6 * GIB,
        "device_bytes": 8 * GIB,
        "node_id": "a",
        "allocated_bytes": 3 * GIB,
        "reserved_bytes": 6 * GIB,
        "alloc_retries": 0,
        "phases": {},
        "trace": None,
    }
    return RankStep(**{**values, **changes})


def trace(number: int, span_us: tuple[float, float], *, offset_us: float = 0.0) -> RankTrace:
    """A rank that computes for the first half second and is in one collective for the second."""
    return RankTrace(
        rank=number,
        window_us=(0.0 - offset_us, 1e6 - offset_us),
        collectives=(
            Collective(
                kind=Kind.ALL_GATHER,
                start_us=span_us[0] - offset_us,
                end_us=span_us[1] - offset_us,
                group="0",
                group_size=2,
                num_bytes=8,
            ),
        ),
        compute_us=((0.0 - offset_us, 0.5e6 - offset_us),),
        clock_offset_us=offset_us,
        overhead_s=0.25 * (number + 1),
    )


def metrics(*ranks: RankStep, **changes: Any) -> tuple[dict[str, Any], dict[str, str]]:
    settings: dict[str, Any] = {"device": "cuda", "weight_sync_s": 0.0, "why_no_kl": None}
    return step_metrics(ranks, **{**settings, **changes})


def test_memory_of_an_accelerator_is_that_of_the_fullest_rank() -> None:
    own, _ = metrics(rank(), rank(peak_bytes=4 * GIB))
    assert own["autotune/peak_memory_ratio"] == 0.75


def test_without_an_accelerator_the_ranks_of_a_node_share_its_memory() -> None:
    own, _ = metrics(
        rank(peak_bytes=GIB), rank(peak_bytes=3 * GIB), rank(node_id="b"), device="cpu"
    )
    assert own["autotune/peak_memory_ratio"] == 0.75


def test_peaks_are_kept_of_every_rank_and_phase() -> None:
    own, _ = metrics(
        rank(phases={"ref": phase(0, 1)}), rank(phases={"ref": phase(0, 1, gib=2)})
    )
    assert own["autotune/peak_allocated_gib"] == [3.0, 3.0]
    assert own["autotune/phase_ref_peak_allocated_gib"] == [1.0, 2.0]
    assert own["autotune/phase_ref_peak_reserved_gib"] == [2.0, 4.0]


def test_retries_of_the_allocator_add_up_and_are_absent_without_one() -> None:
    assert metrics(rank(alloc_retries=2), rank())[0]["autotune/alloc_retries"] == 2
    own, absent = metrics(rank(alloc_retries=None), rank(alloc_retries=None))
    assert own["autotune/alloc_retries"] is None
    assert absent["autotune/alloc_retries"] == "there is no accelerator"


def test_consistency_is_kept_of_every_rank() -> None:
    assert metrics(rank(), rank(k_nats=2e-6))[0]["autotune/kl_per_rank"] == [1e-6, 2e-6]


@pytest.mark.parametrize(
    ("ranks", "why_no_kl", "reason"),
    [
        ((rank(), rank(k_nats=None)), None, "a rank had no response token"),
        ((rank(), rank()), "two engines", "two engines"),
    ],
)
def test_consistency_that_means_nothing_is_absent_with_a_reason(
    ranks: tuple[RankStep, RankStep], why_no_kl: str | None, reason: str
) -> None:
    own, absent = metrics(*ranks, why_no_kl=why_no_kl)
    assert own["autotune/kl_per_rank"] is None
    assert reason in absent["autotune/kl_per_rank"]


def test_a_step_without_the_profiler_says_nothing_of_communication() -> None:
    own, _ = metrics(rank(phases={"ref": phase(0, 1)}))
    assert not any("comm" in name or "profile" in name for name in own)


def test_a_profiled_step_holds_its_weight_sync_and_what_recording_cost() -> None:
    ranks = [rank(trace=trace(number, (0.5e6, 1e6))) for number in range(2)]
    own, _ = metrics(*ranks, weight_sync_s=1.0)
    # 0.5 s exposed transfer and 1 s weight sync of 2 s
    assert own["autotune/exposed_comm_ratio"] == pytest.approx(0.75)
    assert own["autotune/profiled_step_s"] == pytest.approx(2.0)
    assert own["autotune/profiler_s"] == 0.5


def test_phases_of_ranks_with_different_clocks_become_one_window() -> None:
    # On the shared clock: 0.25 to 0.75 s on rank 0, 0.5 to 1 s on rank 1, a window of 0.75 s.
    ranks = [
        rank(trace=trace(0, (0.5e6, 1e6)), phases={"ref": phase(0.25e6, 0.75e6)}),
        rank(
            trace=trace(1, (0.5e6, 1e6), offset_us=5e6), phases={"ref": phase(-4.5e6, -4e6)}
        ),
    ]
    own, _ = metrics(*ranks)
    assert own["autotune/phase_ref_exposed_comm_ratio"] == pytest.approx(0.5 / 0.75)
    assert own["autotune/phase_ref_idle_ratio"] == pytest.approx(0.0)


def test_a_phase_after_the_recording_has_memory_alone() -> None:
    ranks = [
        rank(trace=trace(n, (0.5e6, 1e6)), phases={"update_weights": phase(0.9e6, 1.5e6)})
        for n in range(2)
    ]
    own, _ = metrics(*ranks, weight_sync_s=0.5)
    assert "autotune/phase_update_weights_comm_ratio" not in own
    assert own["autotune/phase_update_weights_peak_reserved_gib"] == [2.0, 2.0]


def test_the_reason_of_a_phase_is_kept_under_its_own_name() -> None:
    ranks = [
        rank(trace=trace(n, (0.5e6, 1e6)), phases={"ref": phase(0.0, 0.25e6)}) for n in range(2)
    ]
    own, absent = metrics(*ranks)
    assert own["autotune/phase_ref_comm_overlap_ratio"] is None
    assert absent["autotune/phase_ref_comm_overlap_ratio"] == "there was no communication"


def probed(after: float, sketch: list[float]) -> ProbeOfRank:
    return ProbeOfRank(
        start=[0.0, 0.0],
        after=[after, after],
        after_again=[0.0, 0.0],
        grad_sketch=sketch,
        grad_sketch_again=sketch,
    )


def test_the_probes_kl_is_over_the_tokens_of_all_ranks() -> None:
    # d = 1 for half of the tokens: (e - 2) / 2
    own, absent = probe_metrics([probed(-1.0, [1.0]), probed(0.0, [1.0])])
    assert own["autotune/probe_kl"] == pytest.approx(0.3591409142)
    assert own["autotune/probe_kl_again"] == 0.0
    assert own["autotune/grad_sketch"] == [1.0] and absent == {}


def test_a_rank_that_could_not_be_probed_leaves_all_absent_with_its_reason() -> None:
    own, absent = probe_metrics([probed(0.0, [1.0]), "no probe here"])
    assert set(own.values()) == {None}
    assert set(absent.values()) == {"no probe here"} and absent.keys() == own.keys()


def test_divergence_is_the_largest_distance_of_two_ranks_at_one_token() -> None:
    own, _ = divergence_metrics([[0.0, 5.0], [0.25, 5.0], [-0.5, 5.0]])
    assert own == {"autotune/rank_divergence": 0.75}


def test_one_rank_has_no_divergence() -> None:
    own, absent = divergence_metrics([[0.0]])
    assert own == {"autotune/rank_divergence": None}
    assert absent == {"autotune/rank_divergence": "one rank cannot differ from itself"}


VERLS = {
    "perf/throughput": 50.0,
    "perf/time_per_step": 10.0,
    "perf/total_num_tokens": 1000.0,
    "timing_s/step": 10.0,
    "timing_s/gen": 4.0,
    "timing_per_token_ms/gen": 4.0,
    "timing_s/old_log_prob": 1.0,
    "timing_s/update_actor": 3.0,
    "timing_s/update_weights": 1.0,
    "actor/grad_norm": 0.5,
    "actor/kl_loss": 0.01,
    "actor/ppo_kl": 0.0,
    "training/rollout_probs_diff_mean": 1e-3,
}


def test_the_phases_that_train_are_timed_without_generation_and_weight_sync() -> None:
    # 1000 tokens in 1 + 3 s on 2 ranks
    assert update_only_metrics(VERLS, 2) == {
        "autotune/update_only_s": 4.0,
        "autotune/update_only_tokens_per_s_per_gpu": 125.0,
    }


def test_a_replayed_step_has_no_time_of_a_whole_one_and_did_not_generate() -> None:
    metrics, reasons = replayed(VERLS, 1)
    whole = ["perf/throughput", "perf/time_per_step", "timing_s/step"]
    assert [name for name, value in metrics.items() if value is None] == whole
    assert list(reasons) == whole and "the rollout was replayed" in reasons["timing_s/step"]
    assert "timing_s/gen" not in metrics and "timing_per_token_ms/gen" not in metrics
    assert metrics["actor/kl_loss"] == 0.01


def test_from_the_second_step_on_a_replayed_rollout_is_not_the_policys() -> None:
    metrics, reasons = replayed(VERLS, 2)
    for name in ("actor/kl_loss", "training/rollout_probs_diff_mean"):
        assert metrics[name] is None
        assert "its tokens are the first policy's" in reasons[name]
    assert (metrics["actor/ppo_kl"], metrics["actor/grad_norm"]) == (0.0, 0.5)
