"""The probe through verl's real actor worker on two gloo ranks, under several settings.

One start of the ranks serves all tests.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import probe_ranks
import pytest
import yaml
from torch import multiprocessing

from autotune.measure.gradients import SKETCH_SIZE, cosine_deviation
from autotune.measure.kl import kl_from_start, rank_divergence

ROOT = Path(__file__).parents[2]
EXACT = ("micro_batch", "dynamic_batches", "padded_not_resharded")
"""Settings that differ from the baseline in the order of additions alone."""

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Case -> what each rank found."""
    folder = tmp_path_factory.mktemp("probe")
    subprocess.run(
        [sys.executable, "scripts/make_demo_assets.py", "--out", str(folder / "tiny")],
        cwd=ROOT,
        check=True,
    )
    content = yaml.safe_load((ROOT / "search_spaces" / "quickstart_cpu.yaml").read_text())
    overrides = [
        override.replace("demo/tiny", str(folder / "tiny"))
        for override in content["base"]["overrides"]
    ]
    multiprocessing.spawn(
        probe_ranks.run, args=(str(folder), overrides), nprocs=probe_ranks.NUM_RANKS
    )
    ranks = [
        json.loads((folder / f"{rank}.json").read_text()) for rank in range(probe_ranks.NUM_RANKS)
    ]
    return {case: [rank[case] for rank in ranks] for case in probe_ranks.CASES}


def probe_kl(ranks: list[dict[str, Any]], key: str = "after") -> float:
    start = [value for rank in ranks for value in rank["start"]]
    return kl_from_start(start, [value for rank in ranks for value in rank[key]])


def deviation(ranks: list[dict[str, Any]], others: list[dict[str, Any]]) -> float:
    value = cosine_deviation(ranks[0]["grad_sketch"], others[0]["grad_sketch"])
    assert value is not None
    return value


@pytest.mark.parametrize("case", list(probe_ranks.CASES))
def test_weights_optimizer_and_random_numbers_are_untouched(
    found: dict[str, list[dict[str, Any]]], case: str
) -> None:
    assert [rank["is_untouched"] for rank in found[case]] == [True, True]


def test_all_ranks_hold_the_sketch_of_all_and_score_the_same(
    found: dict[str, list[dict[str, Any]]],
) -> None:
    first, second = found["baseline"]
    assert first["grad_sketch"] == second["grad_sketch"]
    assert len(first["grad_sketch"]) == SKETCH_SIZE
    assert rank_divergence([first["scores"], second["scores"]]) == 0.0
    assert first["start"] != second["start"]


def test_the_updates_move_the_policy(found: dict[str, list[dict[str, Any]]]) -> None:
    assert probe_kl(found["baseline"]) > 1e-6


@pytest.mark.parametrize("case", EXACT)
def test_settings_that_only_reorder_additions_agree_with_the_baseline(
    found: dict[str, list[dict[str, Any]]], case: str
) -> None:
    baseline = found["baseline"]
    assert deviation(found[case], baseline) < 1e-9
    assert probe_kl(found[case]) == pytest.approx(probe_kl(baseline), rel=1e-2)


def test_another_micro_batch_is_the_noise_floor(found: dict[str, list[dict[str, Any]]]) -> None:
    first = found["baseline"][0]
    floor = cosine_deviation(first["grad_sketch"], first["grad_sketch_again"])
    assert floor is not None and floor < 1e-9


def test_a_lower_precision_shows_in_gradient_and_drift(
    found: dict[str, list[dict[str, Any]]],
) -> None:
    assert deviation(found["bf16"], found["baseline"]) > 1e-6


def test_an_engine_that_cannot_be_probed_says_so(found: dict[str, list[dict[str, Any]]]) -> None:
    reason = "an engine of the strategy fsdp cannot be probed"
    assert [(r["reason"], r["score_reason"]) for r in found["fsdp1"]] == [(reason, reason)] * 2
