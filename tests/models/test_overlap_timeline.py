"""Predicted times of an update, worked out by hand; see overlap_cases for the round numbers.

A layer: all-gather 0.1 s, forward 0.1 s, backward 0.3 s with recomputation, reduce-scatter 0.1 s.
The root: all-gather and reduce-scatter 0.01 s, no computation.
"""

import pytest
from overlap_cases import CALIBRATION, MB, ROOT, calibration, layers, work

from autotune.models.overlap_plan import Work, make_plan
from autotune.models.overlap_settings import OverlapSettings
from autotune.models.overlap_timeline import UpdateTimes, predict_update


def predict(
    count: int,
    *,
    at: Work | None = None,
    num_micro_batches: int = 1,
    reduces_once: bool = False,
    **settings: object,
) -> UpdateTimes:
    chosen = {"calibration": CALIBRATION} | settings
    plan = make_plan(
        ROOT,
        layers(count),
        settings=OverlapSettings(**chosen),  # type: ignore[arg-type]
        work=at or work(),
    )
    times = predict_update(plan, num_micro_batches=num_micro_batches, reduces_once=reduces_once)
    assert times is not None
    return times


def test_without_a_calibration_there_is_no_prediction() -> None:
    plan = make_plan(ROOT, layers(1), settings=OverlapSettings(), work=work())
    assert predict_update(plan, num_micro_batches=1, reduces_once=False) is None


def test_a_single_layer_hides_nothing() -> None:
    # root 0.01, gather 0.1, forward 0.1, root 0.01, gather 0.1, backward 0.3, reduce 0.1 + 0.01
    times = predict(1)
    assert times.step_s == pytest.approx(0.73)
    assert times.compute_s == pytest.approx(0.4)
    assert times.communication_s == pytest.approx(0.33)
    assert times.exposed_s == pytest.approx(0.33)


def test_the_next_layers_all_gather_hides_behind_this_ones_computation() -> None:
    # forward: 0.01 + 0.1 + 2 x 0.1, the second gather hidden; backward: 0.01 + 0.1 + 2 x 0.3, the
    # second gather and the first reduce-scatter hidden; 0.1 + 0.01 after it
    times = predict(2)
    assert times.step_s == pytest.approx(0.31 + 0.71 + 0.11)
    assert times.exposed_s == pytest.approx(0.33)


def test_on_the_host_collectives_hide_behind_nothing() -> None:
    # gathers of the root and two layers, twice; backward's and forward's compute; their reductions
    times = predict(2, at=work(on_host=True))
    assert times.step_s == pytest.approx(2 * 0.21 + 2 * 0.4 + 0.21)
    assert times.exposed_s == pytest.approx(times.communication_s) == pytest.approx(0.63)


def test_on_the_host_launching_takes_its_time_besides() -> None:
    # 0.01 s a kernel: 10, 20 and 10 of a layer, 1 and 2 of the root
    times = predict(2, at=work(on_host=True), calibration=calibration(launch_overhead_s=0.01))
    assert times.compute_s == pytest.approx(2 * (0.4 + 0.4) + 0.03)
    assert times.step_s == pytest.approx(times.compute_s + 0.63)


def test_where_launching_takes_long_the_device_hides_little() -> None:
    # 0.02 s a kernel: a layer takes 0.2 s in forward and 0.6 s in backward instead of 0.1 and 0.3,
    # the root 0.02 s and 0.04 s
    times = predict(2, calibration=calibration(launch_overhead_s=0.02))
    assert times.compute_s == pytest.approx(2 * 0.4)
    busy_s = 2 * 0.8 + 0.06
    # root and first gather; root and, behind the root's backward, the last layer's; reductions
    stalled_s = 0.11 + 0.01 + (0.1 - 0.04) + 0.11
    assert times.step_s == pytest.approx(busy_s + stalled_s)
    assert times.communication_s == pytest.approx(0.63)
    hidden_s = (0.63 - stalled_s) * 0.8 / busy_s
    assert times.exposed_s == pytest.approx(0.63 - hidden_s)


def test_merged_layers_are_gathered_before_the_first_can_compute() -> None:
    # 0.01 + 0.2 + 0.2; 0.01 + 0.2 + 0.6; 0.2 + 0.01
    assert predict(2, bucket_size=200 * MB).step_s == pytest.approx(0.41 + 0.81 + 0.21)


def test_latency_is_paid_once_a_unit() -> None:
    slow_start = calibration(latency_s=0.05)
    one_by_one = predict(4, calibration=slow_start)
    together = predict(4, calibration=slow_start, bucket_size=400 * MB)
    # gathers of 4 layers against 1 unit, in forward and backward
    saved_s = one_by_one.communication_s - together.communication_s
    assert saved_s == pytest.approx(2 * 3 * 0.05)


def test_parameters_that_are_kept_are_not_gathered_again() -> None:
    times = predict(2, at=work(reshards=False))
    assert times.communication_s == pytest.approx(0.01 + 0.2 + 0.2 + 0.01)


def test_gradients_are_reduced_once_or_in_every_micro_batch() -> None:
    often = predict(2, num_micro_batches=3)
    once = predict(2, num_micro_batches=3, reduces_once=True)
    assert often.communication_s - once.communication_s == pytest.approx(2 * 0.21)
    assert often.compute_s == pytest.approx(3 * 0.8) == once.compute_s


def test_deeper_prefetch_gains_nothing_where_units_are_alike() -> None:
    # ten layers on a link that takes 0.1 s for what computes 0.1 s: even work gains nothing
    assert predict(10, forward_prefetch_depth=3).step_s == pytest.approx(predict(10).step_s)


def test_a_slow_link_bounds_the_step() -> None:
    slow = calibration(gather_bytes_per_s=1e8)
    times = predict(4, calibration=slow)
    # every all-gather takes 1 s and the link never rests in forward: 4 s, and again in backward
    assert times.step_s > 8.0 and times.step_s == pytest.approx(times.communication_s, rel=0.15)
