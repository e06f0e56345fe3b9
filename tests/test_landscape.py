"""Landscapes: files of measurements, drawn from with noise that a seed fixes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.errors import BadInputError
from autotune.landscape import LandscapeSpace, json_text, landscape_of, read_landscape
from autotune.objective import TrialState

FOLDER = Path(__file__).parents[1] / "landscapes"
MICRO, RESHARD = "ppo_micro_batch_size_per_gpu", "reshard_after_forward"
THROUGHPUT = "throughput_tokens_per_s_per_gpu"
SMALL: dict[str, Any] = {
    "name": "small",
    "origin": "by hand",
    "objective": THROUGHPUT,
    "constraints": {"peak_memory_ratio": 0.9},
    "relative_noise": {THROUGHPUT: 0.05},
    "baseline": [1, True],
    "knobs": [MICRO, RESHARD],
    "metrics": [THROUGHPUT, "peak_memory_ratio"],
    "rows": [
        [[1, True], "complete", [10.0, 0.2]],
        [[4, True], "complete", [[20.0, 0.4], [22.0, 0.4]]],
        [[4, False], "complete", [30.0, 0.95]],
        [[16, True], "out_of_memory", []],
    ],
}


def write(path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps({**SMALL, **changes}))
    return path


def suggestion(number: int, size: int, reshard: bool = True) -> dict[str, Any]:
    setting = {MICRO: size, RESHARD: reshard}
    return {"number": number, "attempt": 0, "setting": setting, "params": setting, "overrides": []}


def test_the_optimum_is_the_best_feasible_mean(tmp_path: Path) -> None:
    landscape = read_landscape(write(tmp_path / "a.json"))
    assert landscape.optimum == 21.0
    assert not landscape.is_feasible({MICRO: 4, RESHARD: False})
    assert not landscape.is_feasible({MICRO: 16, RESHARD: True})


def test_a_landscape_is_read_as_it_was_written(tmp_path: Path) -> None:
    landscape = read_landscape(write(tmp_path / "a.json"))
    text = json_text(landscape.to_dict([THROUGHPUT, "peak_memory_ratio", "kl_std"]), rows="rows")
    (tmp_path / "b.json").write_text(text)
    assert read_landscape(tmp_path / "b.json") == landscape
    # eight fields before the rows, four rows, brackets around both
    assert len(text.splitlines()) == 8 + 4 + 4


def test_equal_seeds_draw_equal_trials_and_others_differ(tmp_path: Path) -> None:
    landscape = read_landscape(write(tmp_path / "a.json"))
    values = [
        landscape.trial(suggestion(number, 4), seed).metrics[THROUGHPUT]
        for number, seed in ((1, 0), (1, 0), (2, 0), (1, 1))
    ]
    assert values[0] == values[1]
    assert len(set(values)) == 3


def test_the_drawn_noise_has_the_size_that_the_file_says(tmp_path: Path) -> None:
    landscape = read_landscape(write(tmp_path / "a.json"))
    rng = np.random.default_rng(0)
    values = [landscape.draw({MICRO: 1, RESHARD: True}, rng)[THROUGHPUT] for _ in range(2000)]
    assert np.std(values) / np.mean(values) == pytest.approx(0.05, rel=0.1)


def test_a_failure_is_played_back_without_its_numbers(tmp_path: Path) -> None:
    record = read_landscape(write(tmp_path / "a.json")).trial(suggestion(3, 16), 0)
    assert record.state is TrialState.OUT_OF_MEMORY
    assert record.metrics == {} and not record.feasible


def test_the_space_has_the_settings_of_the_file_and_no_others(tmp_path: Path) -> None:
    space = LandscapeSpace(read_landscape(write(tmp_path / "a.json")))
    assert space.snap({MICRO: 3.1, RESHARD: True}) == {MICRO: 4, RESHARD: True}
    assert not space.is_valid({MICRO: 16, RESHARD: False})
    assert len(space.candidates(np.random.default_rng(0), limit=100)) == 4
    assert len(space.candidates(np.random.default_rng(0), limit=2)) == 2


def test_wide_integers_are_searched_as_real_numbers() -> None:
    space = LandscapeSpace(read_landscape(FOLDER / "simulated_a.json"))
    assert type(space.distributions()["bucket_size"]).__name__ == "FloatDistribution"
    assert type(space.distributions()[MICRO]).__name__ == "IntDistribution"


def test_the_trials_of_a_sweep_are_a_landscape(tmp_path: Path) -> None:
    landscape = read_landscape(write(tmp_path / "a.json"))
    asked = [(0, 1, True), (1, 4, True), (2, 4, True), (3, 16, True)]
    records = [landscape.trial(suggestion(*one), 0) for one in asked]
    found = landscape_of("sweep", records, THROUGHPUT, landscape.constraints)
    assert [len(row.repetitions) for row in found.rows] == [1, 2, 0]
    assert found.baseline == {MICRO: 1, RESHARD: True}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_the_landscapes_that_ship_can_be_searched(path: Path) -> None:
    landscape = read_landscape(path)
    assert landscape.optimum > 0
    assert landscape.name == path.stem


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"baseline": [2, True]}, "the baseline .* has no row"),
        ({"objective": "speed"}, "speed is no metric of the catalogue"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInputError, match=message):
        read_landscape(write(tmp_path / "a.json", **changes))


def test_a_file_that_is_no_landscape_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(BadInputError, match="it lacks name, origin"):
        read_landscape(tmp_path / "a.json")
    with pytest.raises(BadInputError, match="not a landscape"):
        read_landscape(tmp_path / "missing.json")


def test_a_space_with_the_baseline_alone_has_no_other_candidate(tmp_path: Path) -> None:
    landscape = read_landscape(write(tmp_path / "a.json", rows=SMALL["rows"][:1]))
    space = LandscapeSpace(landscape)
    rng = np.random.default_rng(0)
    assert space.random_valid(rng, exclude={space.key(space.baseline())}) is None
    assert space.candidates(rng, limit=10) == [space.baseline()]
