"""The communication of a step, worked out by hand.

A model of one layer with 1,000,000 weights in float32: hidden size 100, inner size 3,200, four
heads of 25, vocabulary of 50 (tied). Its matrices: 4 x 100 x 100 of attention and 3 x 100 x 3,200
of the MLP; with both norms 1,000,200 parameters. The root holds 50 x 100 + 100. At 1e9 FLOP/s and
1 GB/s without latency a token of a layer takes 2 ms forward, and gathering the layer 4.0008 ms.
"""

import dataclasses

import pytest
from overlap_cases import calibration

from autotune.models.model_shape import ModelShape
from autotune.models.overlap_plan import Work
from autotune.models.overlap_settings import OverlapSettings
from autotune.models.step_communication import Phase, WeightSync, predict_step

SHAPE = ModelShape(
    hidden_size=100,
    intermediate_size=3200,
    num_layers=1,
    num_heads=4,
    num_key_value_heads=4,
    head_size=25,
    vocabulary_size=50,
    is_tied=True,
    has_head_norms=False,
)
LAYER_S, ROOT_S = 4 * 1_000_200 / 1e9, 4 * 5_100 / 1e9
"""All-gather, and reduce-scatter as well."""
LAYER_TOKEN_S, ROOT_TOKEN_S = 2 * 1_000_000 / 1e9, 2 * 5_000 / 1e9
"""Forward pass; backward takes twice that."""
TOKENS = 10
UPDATE = Work(tokens=TOKENS, dtype="float32", trains=True, recomputes=False, reshards=True)
FORWARD_S = TOKENS * (LAYER_TOKEN_S + ROOT_TOKEN_S)


def phase(**changes: object) -> Phase:
    values: dict[str, object] = {
        "name": "update_actor",
        "shape": SHAPE,
        "has_head": True,
        "settings": OverlapSettings(),
        "reduce_dtype": "float32",
        "wrapped_for": UPDATE,
        "work": UPDATE,
        "num_micro_batches": 1,
        "num_mini_batches": 1,
        "reduces_once": False,
    }
    return Phase(**{**values, **changes})  # type: ignore[arg-type]


def test_an_update_gathers_twice_and_reduces_once() -> None:
    found = predict_step([phase()], None, calibration())
    assert found.communication_s == pytest.approx(3 * (LAYER_S + ROOT_S))
    assert found.compute_s == pytest.approx(3 * FORWARD_S)
    # The gather of the only layer hides behind the root's part of the backward pass, 0.2 ms.
    assert found.exposed_s == pytest.approx(3 * (LAYER_S + ROOT_S) - 2 * TOKENS * ROOT_TOKEN_S)
    assert found.exposed_ratio == pytest.approx(found.exposed_s / found.step_s)


def test_micro_batches_and_mini_batches_repeat_it() -> None:
    once = predict_step([phase()], None, calibration())
    many = predict_step([phase(num_micro_batches=4, num_mini_batches=3)], None, calibration())
    assert many.communication_s == pytest.approx(12 * once.communication_s)
    assert many.compute_s == pytest.approx(12 * once.compute_s)
    late = phase(num_micro_batches=4, num_mini_batches=3, reduces_once=True)
    saved = many.communication_s - predict_step([late], None, calibration()).communication_s
    assert saved == pytest.approx(3 * 3 * (LAYER_S + ROOT_S))


def scoring(*, reshards: bool) -> Phase:
    work = dataclasses.replace(UPDATE, trains=False, reshards=reshards)
    return phase(name="ref", wrapped_for=work, work=work, num_micro_batches=5)


def test_scoring_gathers_once_a_micro_batch() -> None:
    found = predict_step([scoring(reshards=True)], None, calibration())
    assert found.communication_s == pytest.approx(5 * (LAYER_S + ROOT_S))
    assert found.compute_s == pytest.approx(5 * FORWARD_S)


def test_parameters_that_scoring_keeps_are_gathered_once() -> None:
    found = predict_step([scoring(reshards=False)], None, calibration())
    assert found.communication_s == pytest.approx(LAYER_S + ROOT_S)
    assert found.compute_s == pytest.approx(5 * FORWARD_S)


def test_a_phase_runs_on_units_that_were_made_for_another_micro_batch() -> None:
    # Two layers of 20 ms each; 30 ms of computation ask for one unit, which scoring then runs on.
    settings = OverlapSettings(min_overlap_time_s=0.03)
    slow_start = calibration(latency_s=1.0)
    shape = dataclasses.replace(SHAPE, num_layers=2)
    one = dataclasses.replace(UPDATE, trains=False)
    large = dataclasses.replace(one, tokens=10 * TOKENS)
    merged = phase(shape=shape, settings=settings, wrapped_for=UPDATE, work=large)
    apart = phase(shape=shape, settings=settings, wrapped_for=large, work=large)
    seconds = [
        predict_step([each], None, slow_start).communication_s for each in (merged, apart)
    ]
    # The root and one unit against the root and two.
    assert seconds == pytest.approx([2 + 2 * LAYER_S + ROOT_S, 3 + 2 * LAYER_S + ROOT_S])


def test_weight_sync_gathers_every_entry_of_the_state_and_hides_nothing() -> None:
    latency_s = 0.001
    found = predict_step(
        [], WeightSync(shape=SHAPE, dtype="float32"), calibration(latency_s=latency_s)
    )
    # Seven matrices and two norms of the layer; the embedding twice, since it is tied; the norm.
    expected = 12 * latency_s + LAYER_S + ROOT_S + 4 * 5_000 / 1e9
    assert found.communication_s == found.exposed_s == pytest.approx(expected)
    assert found.compute_s == 0 and found.exposed_ratio == 1
