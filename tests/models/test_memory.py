"""The memory model: what fits, how sure that is, and what one failure says about others."""

import dataclasses

import pytest
from model_cases import BASELINE, ENCODER, MICRO, PEAK, setting, trial

from autotune.models.evidence import Evidence
from autotune.models.memory import MemoryModel, MemoryOrder, device_bytes
from autotune.objective import TrialState


def model(*evidence: Evidence) -> MemoryModel:
    return MemoryModel(ENCODER, BASELINE, evidence)


def fits(memory: MemoryModel, *sizes: int) -> list[float]:
    return memory.fits(ENCODER.batch([setting(size) for size in sizes])).tolist()


def peak_of(size: int) -> float:
    return 0.2 + 0.06 * size


def measured(*sizes: int) -> list[Evidence]:
    return [trial(size, **{PEAK: peak_of(size)}) for size in sizes]


def test_a_line_is_learned_from_two_peaks_and_extrapolated() -> None:
    predicted = model(*measured(1, 4)).ratio(ENCODER.batch([setting(8)]))
    assert predicted is not None
    assert predicted[0][0] == pytest.approx(peak_of(8), abs=0.1)


def test_the_baselines_peak_alone_lets_a_few_more_of_its_micro_batches_fit() -> None:
    chances = fits(model(*measured(1)), 2, 4, 32)
    assert min(chances[:2]) > 0.9
    assert chances[2] < 0.5


def test_what_is_far_beyond_the_device_is_refused_and_what_is_small_is_not() -> None:
    chances = fits(model(*measured(1, 2, 4)), 8, 32)
    assert chances[0] > 0.9
    assert chances[1] < 0.1


def test_the_margin_shrinks_as_evidence_grows() -> None:
    batch = ENCODER.batch([setting(16)])
    spreads = [
        predicted[1][0]
        for sizes in ((1,), (1, 2), (1, 2, 4, 8))
        if (predicted := model(*measured(*sizes)).ratio(batch)) is not None
    ]
    assert spreads[0] > spreads[1] > spreads[2]


def test_a_failure_says_that_every_larger_setting_fails() -> None:
    failed = trial(8, state=TrialState.OUT_OF_MEMORY)
    chances = fits(model(*measured(1), failed), 8, 16, 32)
    assert max(chances) < 0.05


def test_a_failure_raises_the_prediction_below_it_the_more_it_asked_for() -> None:
    failed = trial(16, state=TrialState.OUT_OF_MEMORY)
    far = dataclasses.replace(failed, least_peak=3.0)
    batch = ENCODER.batch([setting(8)])
    predicted = [model(*measured(1, 2), one).ratio(batch) for one in (failed, far)]
    means = [found[0][0] for found in predicted if found is not None]
    assert means[0] < means[1] - 0.1
    assert fits(model(*measured(1, 2), failed), 16)[0] < 0.05


def test_what_ran_says_that_every_smaller_setting_runs() -> None:
    assert min(fits(model(*measured(8)), 1, 2, 4, 8)) > 0.95


def test_without_a_measured_peak_only_order_decides() -> None:
    memory = model(trial(4), trial(16, state=TrialState.OUT_OF_MEMORY))
    assert memory.ratio(ENCODER.batch([setting(8)])) is None
    low, between, high = fits(memory, 2, 8, 32)
    assert low > 0.95 and between == 0.5 and high < 0.05


def test_order_goes_by_the_direction_of_each_knob() -> None:
    order = MemoryOrder(BASELINE)
    more, less = setting(4, reshard=False), setting(2, reshard=True)
    mixed = setting(8, reshard=True)
    assert order.at_least([more], [less]).tolist() == [True]
    assert order.at_least([less], [more]).tolist() == [False]
    assert order.at_least([mixed], [more]).tolist() == [False]


def test_a_knob_without_a_direction_must_be_equal() -> None:
    order = MemoryOrder(["use_dynamic_bsz", MICRO])
    settings = [{"use_dynamic_bsz": True, MICRO: 8}], [{"use_dynamic_bsz": False, MICRO: 4}]
    assert order.at_least(*settings).tolist() == [False]


def test_the_device_is_read_from_a_trials_own_numbers() -> None:
    measured_both = trial(1, **{"peak_reserved_gib": 35.0, PEAK: 0.25})
    assert device_bytes([trial(1), measured_both]) == 140 * 2**30
    assert device_bytes([]) == 80 * 2**30


def test_known_sizes_make_the_first_prediction_sharper() -> None:
    base = measured(1)
    unknown = MemoryModel(ENCODER, BASELINE, base)
    known = MemoryModel(ENCODER, BASELINE, base, {MICRO: 0.06 * 80 * 2**30})
    batch = ENCODER.batch([setting(8)])
    for model_of, width in ((unknown, 0.5), (known, 0.3)):
        predicted = model_of.ratio(batch)
        assert predicted is not None
        assert predicted[0][0] == pytest.approx(peak_of(8), abs=width)
