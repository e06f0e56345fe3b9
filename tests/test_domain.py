"""Domains: what a sweep file may say, and the nearest allowed value."""

from typing import Any

import numpy as np
import pytest

from autotune.domain import make_domain
from autotune.errors import BadInputError
from autotune.knobs import KnobValue

MICRO, MEMORY, TOKENS = (
    "ppo_micro_batch_size_per_gpu",
    "rollout_gpu_memory_utilization",
    "ppo_max_token_len_per_gpu",
)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("ppo_micro_batch_size", {"choices": [1]}, f"no knob.*Did you mean '{MICRO}'"),
        ("zzz", {"choices": [1]}, "no knob 'zzz'. The knobs are: "),
        (MICRO, {"choices": []}, rf"knobs.{MICRO}.choices is empty"),
        (MICRO, {"choices": [1, 2, 1]}, r"choices\[2\] is 1, which choices\[0\] is already"),
        (MICRO, {"choices": [1, 2, "x"]}, r"choices\[2\] is 'x'"),
        (MICRO, {"choices": [1, 0]}, r"choices\[1\] is 0, outside"),
        (MICRO, {"choices": [1], "low": 1}, "choices and low exclude each other"),
        (MICRO, {}, "needs either choices, or low and high; it has neither"),
        (MICRO, {"low": 1}, "it has low"),
        (MICRO, {"low": 8, "high": 2}, r"low is 8, above knobs.*high \(2\)"),
        (MICRO, {"low": 1.5, "high": 2}, r"low is 1.5 \(float\)"),
        (MICRO, {"low": 0, "high": 2}, "low is 0, outside"),
        (MICRO, {"low": 1, "high": 9, "step": 0}, "step is 0"),
        (MICRO, {"low": 1, "high": 9, "step": 1.5}, "step is 1.5"),
        ("kl_coef", {"low": 0, "high": 1, "log": True}, "log is true, but knobs.kl_coef.low is 0"),
        ("kl_coef", {"choices": [0, 1], "log": True}, "smallest choice is 0"),
        ("use_dynamic_bsz", {"choices": [True], "log": True}, "logarithmic"),
        ("use_dynamic_bsz", {"low": 0, "high": 1}, "low and high need a number"),
        (MICRO, {"choices": [1], "when": {"use_dynamic": True}}, "when: there is no knob"),
        (MICRO, {"choices": [1], "when": {"use_dynamic_bsz": 3}}, r"when.use_dynamic_bsz is 3"),
    ],
)
def test_a_bad_domain_is_refused_with_its_key(
    name: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInputError, match=message):
        make_domain(name, **fields)


@pytest.mark.parametrize(
    ("name", "fields", "values"),
    [
        (MICRO, {"choices": [4, 1]}, [4, 1]),
        (MICRO, {"low": 2, "high": 4}, [2, 3, 4]),
        (MICRO, {"low": 1, "high": 10, "step": 4}, [1, 5, 9]),
        (MEMORY, {"low": 0.3, "high": 0.6, "step": 0.1}, [0.3, 0.4, 0.5, 0.6]),
        (TOKENS, {"choices": [25e3, 5e4]}, [25000, 50000]),
    ],
)
def test_the_values_of_a_finite_domain(
    name: str, fields: dict[str, Any], values: list[object]
) -> None:
    domain = make_domain(name, **fields)
    assert list(domain.values()) == values and domain.size == len(values)


def test_floats_without_a_step_are_continuous() -> None:
    assert make_domain(MEMORY, low=0.3, high=0.6).size is None


@pytest.mark.parametrize(
    ("name", "fields", "drawn", "allowed"),
    [
        (MICRO, {"choices": [1, 2, 4]}, 3, 2),  # a tie goes to the first choice
        (MICRO, {"choices": [1, 2, 4]}, 100, 4),
        (MICRO, {"choices": [1, 4, 16]}, 3, 4),  # log: 3/1 is further than 4/3
        (MICRO, {"choices": [1, 4, 16]}, 9, 16),  # log: 16/9 = 1.8 < 9/4 = 2.25
        (MICRO, {"low": 1, "high": 10, "step": 4}, 8, 9),
        (MICRO, {"low": 1, "high": 10, "step": 4}, 10, 9),
        (MICRO, {"low": 1, "high": 9, "step": 8, "log": True}, 4, 9),  # 9/4 < 4/1
        (MEMORY, {"low": 0.3, "high": 0.6}, 0.7, 0.6),
        (MEMORY, {"low": 0.3, "high": 0.6}, 0.41, 0.41),
        ("use_dynamic_bsz", {"choices": [True]}, False, True),
        ("kl_coef", {"choices": [0.001, 0.1]}, 0.0, 0.001),
    ],
)
def test_the_nearest_allowed_value(
    name: str, fields: dict[str, Any], drawn: KnobValue, allowed: KnobValue
) -> None:
    assert make_domain(name, **fields).nearest(drawn) == allowed


@pytest.mark.parametrize(
    ("choices", "log"), [([1, 8], True), ([1, 7], False), ([0.0, 0.1], False), ([4], False)]
)
def test_choices_that_span_a_ratio_of_eight_are_logarithmic(
    choices: list[float], log: bool
) -> None:
    name = "kl_coef" if 0.0 in choices else MICRO
    assert make_domain(name, choices=choices).log is log


def test_draws_are_allowed_values() -> None:
    rng = np.random.default_rng(0)
    for domain in (
        make_domain(MICRO, choices=[1, 4]),
        make_domain(MEMORY, low=0.1, high=0.6),
        make_domain("kl_coef", low=1e-4, high=1e-2, log=True),
    ):
        assert all(domain.contains(domain.draw(rng)) for _ in range(20))
