"""verl's real engines under overlap plans, on two and four gloo ranks: units, schedule, and equal
numbers.

One layer of the little model holds 9,344 parameters, 37,376 bytes in fp32.
"""

import json
import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch.multiprocessing as mp
from engine_knobs import ENTROPY, TURNED
from overlap_ranks import Case, run

# verl is imported and twenty engines are built, on however busy a machine.
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

LAYERS = [f"model.layers.{index}" for index in range(4)]
PAIRS: dict[str, Any] = {"bucket_size": 40_000}
SLOW_LINK = {"latency_s": 0.0, "bandwidth_bytes_per_s": 1e6}
CALIBRATION = {
    "world_size": 2,
    "all_gather": SLOW_LINK,
    "reduce_scatter": SLOW_LINK,
    "all_reduce": SLOW_LINK,
    "flops_per_s": {"float32": 1e8},
    "launch_overhead_s": 0.0,
    "copy_bytes_per_s": 1e9,
}
LORA = {"lora_rank": 4, "lora_alpha": 8, "target_modules": "all-linear"}
CASES = [
    Case(name="plain", overlap=None, saves=True),
    Case(name="zeros", overlap={"bucket_size": 0, "calibration": CALIBRATION}),
    Case(name="pairs", overlap=PAIRS, saves=True),
    Case(name="threes", overlap={"bucket_size": 80_000}),
    Case(name="all", overlap={"bucket_size": 1_000_000}),
    Case(name="deep", overlap={"forward_prefetch_depth": 2, "backward_prefetch_depth": 2}),
    Case(
        name="derived",
        overlap={"overlap_threshold": 1e-3, "calibration": CALIBRATION, "sequence_tokens": 16},
    ),
    Case(
        name="by_time",
        # 9,216 weights of matrices x 2 x 32 tokens: 5.9 ms a layer; attention adds less than 1 %
        overlap={"min_overlap_time_s": 0.01, "calibration": CALIBRATION, "sequence_tokens": 16},
    ),
    Case(name="verls_prefetch", overlap=PAIRS, engine={"forward_prefetch": True}),
    Case(name="kept", overlap=PAIRS, engine={"reshard_after_forward": False}),
    Case(
        name="no_sync", overlap=PAIRS, engine={"use_no_sync_for_gradient_accumulation": True}
    ),
    Case(
        name="no_checkpointing",
        overlap=PAIRS | {"forward_prefetch_depth": 1},
        model_config={"enable_gradient_checkpointing": False},
    ),
    Case(name="resumed", overlap={"bucket_size": 1_000_000}, load_from="pairs"),
    Case(name="resumed_by_verl", overlap=None, load_from="pairs"),
    Case(name="untied_plain", overlap=None, model="untied"),
    Case(name="untied_pairs", overlap=PAIRS, model="untied"),
    Case(name="critic_plain", overlap=None, model_type="value_model"),
    Case(name="critic_pairs", overlap=PAIRS, model_type="value_model"),
    Case(name="ref_plain", overlap=None, engine={"forward_only": True}),
    Case(name="ref_pairs", overlap=PAIRS, engine={"forward_only": True}),
    Case(name="lora_plain", overlap=None, model_config=LORA),
    # the adapters add 8,192 bytes to a layer
    Case(name="lora_pairs", overlap={"bucket_size": 50_000}, model_config=LORA),
    Case(name="verls_own_prefetch", overlap=None, engine={"forward_prefetch": True}),
    Case(name="entropy", overlap=None, batch=ENTROPY),
    Case(name="chunked", overlap=None, engine={"entropy_from_logits_with_chunking": True}),
    Case(name="compiled", overlap=None, engine={"use_torch_compile": True}),
    *(
        Case(
            name=f"turned_{knob}",
            overlap=None,
            engine=turned.engine,
            model_config=turned.model_config,
            batch=turned.batch,
            model_type=turned.model_type,
        )
        for knob, turned in TURNED.items()
    ),
]


ON_FOUR = ("plain", "pairs", "all", "deep", "kept", "no_sync")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, Any]]:
    return _run(CASES, tmp_path_factory.mktemp("overlap"), num_ranks=2)


@pytest.fixture(scope="module")
def on_four(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, Any]]:
    cases = [case for case in CASES if case.name in ON_FOUR]
    return _run(cases, tmp_path_factory.mktemp("overlap"), num_ranks=4)


def _run(cases: list[Case], folder: Path, *, num_ranks: int) -> dict[str, Mapping[str, Any]]:
    mp.spawn(run, args=(cases, folder, num_ranks), nprocs=num_ranks)
    return {case.name: _read(folder, case.name, rank=0) for case in cases}


def _read(folder: Path, name: str, rank: int) -> Mapping[str, Any]:
    content: Mapping[str, Any] = json.loads(
        (folder / f"{name}.{rank}.json").read_text(encoding="utf-8")
    )
    return content


def units(result: Mapping[str, Any]) -> list[list[str]]:
    return [unit for unit in result["units"] if unit != [""]]


def events(result: Mapping[str, Any], *kinds: str) -> list[str]:
    """Return the first micro-batch's units of some kinds of events, in order."""
    found = [unit for kind, unit in result["schedule"] if kind in kinds]
    assert len(found) % 2 == 0
    return found[: len(found) // 2]


def gathered_ahead(result: Mapping[str, Any], direction: str) -> int:
    """Return how many units were gathered at most, but not yet begun, when one began in
    ``direction``."""
    ahead: set[str] = set()
    begun, largest = "", 0
    for kind, unit in result["schedule"]:
        if kind == "gather" and unit != begun:
            ahead.add(unit)
        elif kind in ("forward", "backward"):
            largest = max(largest, len(ahead)) if kind == direction else largest
            ahead.discard(unit)
            begun = unit
    return largest


# Which layers share a unit


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain", [[layer] for layer in LAYERS]),
        ("zeros", [[layer] for layer in LAYERS]),
        ("deep", [[layer] for layer in LAYERS]),
        ("pairs", [LAYERS[:2], LAYERS[2:]]),
        ("threes", [LAYERS[:3], LAYERS[3:]]),
        ("all", [LAYERS]),
        ("by_time", [LAYERS[:2], LAYERS[2:]]),
        ("untied_pairs", [["model.embed_tokens"], LAYERS[:2], LAYERS[2:], ["lm_head"]]),
        ("critic_pairs", [LAYERS[:2], LAYERS[2:]]),
        ("ref_pairs", [LAYERS[:2], LAYERS[2:]]),
        (
            "lora_pairs",
            [[f"base_model.model.{name}" for name in pair] for pair in (LAYERS[:2], LAYERS[2:])],
        ),
    ],
)
def test_the_units_are_those_of_the_plan(
    results: Mapping[str, Any], name: str, expected: list[list[str]]
) -> None:
    assert units(results[name]) == expected


@pytest.mark.parametrize("name", ["plain", "zeros"])
def test_without_a_setting_the_engine_wraps_as_verl_does(
    results: Mapping[str, Any], name: str
) -> None:
    assert results[name]["plan"] is None


# When collectives are issued


def test_a_unit_has_one_all_gather_in_each_direction_and_one_reduce_scatter(
    results: Mapping[str, Any],
) -> None:
    first, second = ", ".join(LAYERS[:2]), ", ".join(LAYERS[2:])
    # the root, which holds the tied embeddings, is gathered first in both directions
    assert events(results["pairs"], "gather") == ["", first, second, "", second, first]
    assert events(results["pairs"], "reduce") == [second, first, ""]


@pytest.mark.parametrize("name", ["pairs", "deep", "no_checkpointing", "verls_prefetch"])
def test_recomputation_gathers_nothing_again_and_nothing_in_the_wrong_direction(
    results: Mapping[str, Any], name: str
) -> None:
    gathers = events(results[name], "gather")
    half = len(gathers) // 2
    forward, backward = gathers[:half], gathers[half:]
    assert backward == ["", *reversed(forward[1:])]


def test_without_resharding_backward_gathers_nothing(results: Mapping[str, Any]) -> None:
    assert len(events(results["kept"], "gather")) == len(events(results["pairs"], "gather")) // 2


def test_without_synchronisation_gradients_are_reduced_once_a_mini_batch(
    results: Mapping[str, Any],
) -> None:
    reduces = [unit for kind, unit in results["no_sync"]["schedule"] if kind == "reduce"]
    assert len(reduces) == 3


@pytest.mark.parametrize(
    ("name", "forward", "backward"),
    [
        # FSDP2 by itself: nothing early in forward, one unit in backward
        ("plain", 0, 1),
        ("pairs", 0, 1),
        ("deep", 2, 2),
        ("verls_prefetch", 1, 1),
        # a link that is too slow for any depth: as deep as derived depths go
        ("derived", 4, 4),
    ],
)
def test_units_are_gathered_as_far_ahead_as_the_plan_says(
    results: Mapping[str, Any], name: str, forward: int, backward: int
) -> None:
    found = results[name]
    assert (gathered_ahead(found, "forward"), gathered_ahead(found, "backward")) == (
        forward,
        backward,
    )


# Knobs that verl's own engines read


def count(result: Mapping[str, Any], operator: str) -> int:
    """Return how often operators ran that have this in their names."""
    return sum(number for name, number in result["operators"].items() if operator in name)


@pytest.mark.parametrize("knob", TURNED)
def test_turning_a_knob_changes_what_an_update_runs(
    results: Mapping[str, Any], knob: str
) -> None:
    turned = TURNED[knob]
    other = results[turned.against]
    own = count(results[f"turned_{knob}"], turned.operator)
    expected = operator.gt if turned.is_more else operator.lt
    assert expected(own, count(other, turned.operator)), other["operators"]


def test_verls_own_switch_gathers_the_next_unit_early(results: Mapping[str, Any]) -> None:
    assert gathered_ahead(results["plain"], "forward") == 0
    assert gathered_ahead(results["verls_own_prefetch"], "forward") == 1


def test_the_entropy_is_computed_as_its_knobs_say(results: Mapping[str, Any]) -> None:
    assert results["entropy"]["entropy"] == "entropy_from_logits"
    assert results["chunked"]["entropy"] == "entropy_from_logits_with_chunking"
    assert results["compiled"]["entropy"] == "compiled entropy_from_logits"


def test_without_an_accelerator_every_plan_is_one_for_the_host(
    results: Mapping[str, Any],
) -> None:
    planned = {name: found["on_host"] for name, found in results.items() if found["plan"]}
    assert planned.keys() > {"pairs", "critic_pairs"}
    assert set(planned.values()) == {True}


# The same numbers


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        *((name, "plain") for name in ("zeros", "pairs", "threes", "all", "deep", "derived")),
        *((name, "plain") for name in ("by_time", "verls_prefetch", "kept")),
        ("no_checkpointing", "plain"),
        ("untied_pairs", "untied_plain"),
        ("critic_pairs", "critic_plain"),
        ("lora_pairs", "lora_plain"),
    ],
)
def test_losses_gradient_norms_and_weights_do_not_depend_on_the_plan(
    results: Mapping[str, Any], name: str, reference: str
) -> None:
    found, expected = results[name], results[reference]
    for step in range(2):
        assert found["updates"][step] == pytest.approx(expected["updates"][step], rel=1e-6)
    assert found["shards"].keys() == expected["shards"].keys()
    for tensor, values in expected["shards"].items():
        assert found["shards"][tensor] == pytest.approx(values, rel=1e-4, abs=1e-4), tensor


def test_without_synchronisation_sums_differ_by_their_order_alone(
    results: Mapping[str, Any],
) -> None:
    # Adam makes a rounding error of a gradient that is 0 as large as any step, so weights differ.
    found, expected = results["no_sync"]["updates"], results["plain"]["updates"]
    assert found[0] == pytest.approx(expected[0], rel=1e-6)
    assert found[1] == pytest.approx(expected[1], rel=1e-4)


def test_the_rollout_receives_the_same_weights(results: Mapping[str, Any]) -> None:
    expected = results["plain"]["synchronised"]
    found = results["pairs"]["synchronised"]
    assert "lm_head.weight" in expected and found.keys() == expected.keys()
    for tensor, values in expected.items():
        assert found[tensor] == pytest.approx(values, rel=1e-4, abs=1e-4), tensor


def test_updates_change_the_loss(results: Mapping[str, Any]) -> None:
    assert operator.ne(*(loss for loss, _ in results["plain"]["updates"]))


def test_the_references_scores_do_not_depend_on_the_plan(results: Mapping[str, Any]) -> None:
    expected = results["ref_plain"]["log_probs"]
    assert results["ref_pairs"]["log_probs"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", ["resumed", "resumed_by_verl"])
def test_a_checkpoint_of_one_plan_goes_on_under_another(
    results: Mapping[str, Any], name: str
) -> None:
    assert units(results[name]) != units(results["pairs"])
    expected = results["pairs"]["third_update"]
    assert results[name]["third_update"] == pytest.approx(expected, rel=1e-6)


# Four ranks


def test_on_four_ranks_units_and_collectives_are_those_of_two(
    results: Mapping[str, Any], on_four: Mapping[str, Any]
) -> None:
    for name in ON_FOUR:
        assert units(on_four[name]) == units(results[name])
        for kind in ("gather", "reduce"):
            found, expected = (
                [unit for what, unit in each[name]["schedule"] if what == kind]
                for each in (on_four, results)
            )
            assert found == expected, (name, kind)


@pytest.mark.parametrize("name", [name for name in ON_FOUR if name != "plain"])
def test_on_four_ranks_losses_and_gradient_norms_do_not_depend_on_the_plan(
    on_four: Mapping[str, Any], name: str
) -> None:
    found, expected = on_four[name]["updates"][0], on_four["plain"]["updates"][0]
    assert found == pytest.approx(expected, rel=1e-6)
