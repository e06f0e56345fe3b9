"""Overlap plans of small models, worked out by hand; see overlap_cases for the round numbers."""

import dataclasses

import pytest
from overlap_cases import CALIBRATION, MB, ROOT, calibration, layer, layers, work

from autotune.errors import BadInputError
from autotune.models.overlap_plan import Layer, Plan, Work, make_plan
from autotune.models.overlap_settings import OverlapSettings


def plan(
    stack: list[Layer], *, root: Layer = ROOT, at: Work | None = None, **settings: object
) -> Plan:
    made = OverlapSettings(**settings)  # type: ignore[arg-type]
    return make_plan(root, stack, settings=made, work=at or work())


def sizes(made: Plan) -> list[int]:
    return [len(unit.layers) for unit in made.units]


def forward_depths(made: Plan) -> list[int]:
    return [unit.forward_prefetch_depth for unit in made.all_units]


def backward_depths(made: Plan) -> list[int]:
    return [unit.backward_prefetch_depth for unit in made.all_units]


@pytest.mark.parametrize(
    ("bucket_size", "expected"),
    [
        (0, [1, 1, 1, 1]),
        (25 * MB, [1, 1, 1, 1]),
        (100 * MB, [1, 1, 1, 1]),
        (101 * MB, [2, 2]),
        (250 * MB, [3, 1]),  # the last bucket is smaller
        (1000 * MB, [4]),
    ],
)
def test_layers_join_until_a_bucket_is_full(bucket_size: int, expected: list[int]) -> None:
    assert sizes(plan(layers(4), bucket_size=bucket_size)) == expected


def test_layers_of_two_stacks_and_single_modules_never_join() -> None:
    stack = [layer(0, stack=""), layer(1), layer(2), layer(3, stack="visual"), layer(4, stack="")]
    assert sizes(plan(stack, bucket_size=1000 * MB)) == [1, 2, 1, 1]


def test_tied_embeddings_stay_with_the_root_and_are_gathered_first() -> None:
    # the root holds the embeddings, which are the output's matrix too
    root = dataclasses.replace(ROOT, parameter_bytes=300 * MB, forward_flops_per_token=5e6)
    made = plan(layers(2), root=root, bucket_size=1000 * MB, calibration=CALIBRATION)
    assert made.all_units[0].parameter_bytes == 300 * MB and sizes(made) == [2]
    times = made.root.times
    assert times is not None
    # 5e6 FLOP x 100 tokens at 1e9 FLOP/s; 300 MB at 1 GB/s
    assert times.forward_s == pytest.approx(0.5) and times.all_gather_s == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.1, [1, 1, 1, 1]), (0.11, [2, 2]), (0.25, [3, 1]), (9.0, [4])],
)
def test_layers_join_until_a_unit_holds_enough_computation(
    seconds: float, expected: list[int]
) -> None:
    # 100 tokens: 0.1 s a layer
    made = plan(layers(4), min_overlap_time_s=seconds, calibration=CALIBRATION)
    assert sizes(made) == expected


def test_a_larger_micro_batch_needs_fewer_layers_for_the_same_computation() -> None:
    made = plan(
        layers(4), at=work(tokens=200), min_overlap_time_s=0.15, calibration=CALIBRATION
    )
    assert sizes(made) == [1, 1, 1, 1]


def test_the_memory_limit_wins_over_both_thresholds() -> None:
    # two units of 200 MB at once fit into 400 MB, two of 300 MB do not
    made = plan(
        layers(4),
        bucket_size=1000 * MB,
        min_overlap_time_s=9.0,
        max_unsharded_bytes=400 * MB,
        calibration=CALIBRATION,
    )
    assert sizes(made) == [2, 2]


def test_times_without_a_calibration_are_none() -> None:
    assert [unit.times for unit in plan(layers(2), bucket_size=1).all_units] == [None] * 3


@pytest.mark.parametrize(
    ("at", "backward_s", "again_s", "reduce_s"),
    [
        # backward 2 x 0.1 s, recomputation 0.1 s
        (work(), 0.3, 0.1, 0.1),
        (work(recomputes=False), 0.2, 0.1, 0.1),
        (work(reshards=False), 0.3, 0.0, 0.1),
        (work(trains=False), 0.0, 0.0, 0.0),
    ],
)
def test_times_follow_what_the_engine_does(
    at: Work, backward_s: float, again_s: float, reduce_s: float
) -> None:
    times = plan(layers(1), at=at, calibration=CALIBRATION).units[0].times
    assert times is not None
    assert times.forward_s == pytest.approx(0.1) and times.all_gather_s == pytest.approx(0.1)
    assert times.backward_s == pytest.approx(backward_s)
    assert times.backward_all_gather_s == pytest.approx(again_s)
    assert times.reduce_scatter_s == pytest.approx(reduce_s)


def test_small_micro_batches_take_as_long_as_launching_their_kernels() -> None:
    # 10 kernels x 0.05 s against 1 token x 1 ms
    slow_host = calibration(launch_overhead_s=0.05)
    times = plan(layers(1), at=work(tokens=1), calibration=slow_host).units[0].times
    assert times is not None and times.forward_s == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [
        # an all-gather takes 0.1 s, a layer computes 0.1 s; the root's gather hides nothing, so
        # the root gathers as many units as wait for the first computation
        (1.0, [1, 1, 1, 1, 0]),
        (0.5, [2, 2, 2, 1, 0]),
        (0.3, [4, 3, 2, 1, 0]),
    ],
)
def test_units_are_gathered_as_far_ahead_as_the_threshold_takes(
    threshold: float, expected: list[int]
) -> None:
    made = plan(layers(4), overlap_threshold=threshold, calibration=CALIBRATION)
    assert forward_depths(made) == expected


def test_backward_hides_gradients_too_and_runs_the_other_way() -> None:
    # all-gather and reduce-scatter take 0.2 s, backward with recomputation 0.3 s: 0.67 is above
    # 0.5, two units ahead are below it
    made = plan(layers(4), overlap_threshold=0.5, calibration=CALIBRATION)
    # order of the result: root, first layer ... last layer
    assert backward_depths(made) == [2, 0, 1, 2, 2]


def test_a_fast_link_needs_one_unit_ahead() -> None:
    fast = calibration(gather_bytes_per_s=1e12)
    made = plan(layers(4), overlap_threshold=0.5, calibration=fast)
    assert forward_depths(made) == [1, 1, 1, 1, 0]


def test_the_memory_limit_bounds_derived_depths() -> None:
    # a unit and one ahead always fit; 100 MB and three ahead do not fit into 300 MB
    made = plan(
        layers(6), overlap_threshold=0.1, max_unsharded_bytes=300 * MB, calibration=CALIBRATION
    )
    assert max(forward_depths(made)[1:]) == 2


def test_explicit_depths_override_derived_ones() -> None:
    made = plan(
        layers(4),
        overlap_threshold=1.0,
        forward_prefetch_depth=3,
        backward_prefetch_depth=2,
        calibration=CALIBRATION,
    )
    assert set(forward_depths(made)) == {3} and set(backward_depths(made)) == {2}


def test_one_explicit_depth_leaves_the_other_derived() -> None:
    made = plan(
        layers(4), overlap_threshold=1.0, forward_prefetch_depth=3, calibration=CALIBRATION
    )
    assert set(forward_depths(made)) == {3} and backward_depths(made) == [1, 0, 1, 1, 1]


@pytest.mark.parametrize("at", [work(trains=False), work(reshards=False)])
def test_nothing_is_gathered_ahead_in_a_backward_pass_that_gathers_nothing(at: Work) -> None:
    made = plan(
        layers(2),
        at=at,
        overlap_threshold=0.5,
        backward_prefetch_depth=2,
        calibration=CALIBRATION,
    )
    assert set(backward_depths(made)) == {0}


def test_a_dtype_that_was_not_calibrated_is_refused() -> None:
    at = dataclasses.replace(work(), dtype="bfloat16")
    with pytest.raises(BadInputError, match="flops_per_s has no bfloat16.*It has float32"):
        plan(layers(1), at=at, calibration=CALIBRATION)


def test_a_plan_says_in_one_line_what_it_does() -> None:
    made = plan(layers(4), bucket_size=150 * MB, forward_prefetch_depth=2)
    assert str(made) == (
        "4 layers in 2 units of at most 200.0 MB, gathered up to 2 ahead in forward, 1 in backward"
    )
