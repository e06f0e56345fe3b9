"""What an earlier sweep gives: evidence where all is alike, else suggestions; never silently."""

import copy
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import BadInputError
from autotune.landscape import Landscape, LandscapeSpace, read_landscape
from autotune.models.promise import goal_of
from autotune.objective import Constraint
from autotune.replay import run_directly
from autotune.settings import ConstraintConfig, SearchConfig
from autotune.store import SweepStore
from autotune.warm_start import CIRCUMSTANCES_FILE, WarmStart, check_folders, warm_start

LANDSCAPE = Path(__file__).parents[1] / "landscapes" / "2xh200_ppo_microbatch.json"
MICRO = "ppo_micro_batch_size_per_gpu"
OWN: dict[str, dict[str, Any]] = {
    "model": {"hidden_size": 896},
    "hardware": {"device": "gpu", "accelerators": ["accelerator_type:H200"]},
    "world size": {"nodes": 1, "ranks_per_node": 2},
    "versions": {"verl": "0.9.1"},
    "workload": {"data.train_batch_size": 64},
    "fidelity": {"trial.fidelity": "full"},
}
SETTINGS = SearchConfig(
    sampler="random", num_trials=8, max_concurrent=1, seed=0, num_startup_trials=3, confirm_ratio=0
)


@pytest.fixture(scope="module")
def landscape() -> Landscape:
    return read_landscape(LANDSCAPE)


@pytest.fixture
def earlier(tmp_path: Path, landscape: Landscape) -> Path:
    """A finished sweep that visited all eight settings, under the same circumstances."""
    folder = tmp_path / "earlier"
    run_directly(landscape, SETTINGS, seed=0, folder=folder)
    (folder / CIRCUMSTANCES_FILE).write_text(json.dumps(OWN))
    return folder


def start(
    folder: Path,
    earlier: Path,
    landscape: Landscape,
    own: Mapping[str, Mapping[str, Any]] = OWN,
    constraints: tuple[Constraint, ...] | None = None,
) -> WarmStart:
    limits = landscape.constraints if constraints is None else constraints
    store = SweepStore(folder)
    with store.locked():
        return warm_start(
            store,
            LandscapeSpace(landscape),
            own,
            folders=[str(earlier)],
            goal=goal_of(landscape.objective, limits),
            constraints=limits,
        )


def test_trials_under_equal_circumstances_are_evidence(
    tmp_path: Path, earlier: Path, landscape: Landscape
) -> None:
    found = start(tmp_path / "new", earlier, landscape)
    assert len(found.evidence) == 8
    assert found.suggested[0] == {MICRO: 64}
    assert found.lines == [f"{earlier}: 8 trial(s) and 2 suggestion(s)."]


@pytest.mark.parametrize("name", list(OWN))
def test_any_other_circumstance_leaves_suggestions_only_and_is_named(
    tmp_path: Path, earlier: Path, landscape: Landscape, name: str
) -> None:
    other = copy.deepcopy(OWN)
    other[name]["changed"] = True
    found = start(tmp_path / "new", earlier, landscape, own=other)
    assert found.evidence == [] and len(found.suggested) == 2
    assert found.lines == [f"{earlier}: 2 suggestion(s) only: another {name}."]


def test_what_replayed_trials_found_suggests_settings_for_whole_steps(
    tmp_path: Path, earlier: Path, landscape: Landscape
) -> None:
    store, name = SweepStore(earlier), "update_only_tokens_per_s_per_gpu"
    with store.locked():
        for record in store.read_trials():
            metrics = dict(record.metrics)
            metrics[name], metrics[landscape.objective] = metrics[landscape.objective], None
            store.append_trial(dataclasses.replace(record, metrics=metrics))
    noted = {**OWN, "fidelity": {"trial.fidelity": "update"}}
    (earlier / CIRCUMSTANCES_FILE).write_text(json.dumps(noted))
    found = start(tmp_path / "new", earlier, landscape)
    assert (found.evidence, found.suggested[0]) == ([], {MICRO: 64})
    assert found.lines == [f"{earlier}: 2 suggestion(s) only: another fidelity."]


def test_a_sweep_that_did_not_note_its_circumstances_only_suggests(
    tmp_path: Path, earlier: Path, landscape: Landscape
) -> None:
    (earlier / CIRCUMSTANCES_FILE).unlink()
    assert start(tmp_path / "new", earlier, landscape).evidence == []


def test_earlier_trials_are_held_against_this_sweeps_limits(
    tmp_path: Path, earlier: Path, landscape: Landscape
) -> None:
    limits = (ConstraintConfig(metric="peak_memory_ratio", max=0.3),)
    found = start(tmp_path / "new", earlier, landscape, constraints=limits)
    # 64 takes 36 % of the memory, 32 takes 21 %
    assert found.suggested[0] == {MICRO: 32}


def test_a_resumed_sweep_does_not_need_the_earlier_folder(
    tmp_path: Path, earlier: Path, landscape: Landscape
) -> None:
    first = start(tmp_path / "new", earlier, landscape)
    assert start(tmp_path / "new", tmp_path / "gone", landscape) == first


@pytest.mark.parametrize(
    ("name", "said"), [("empty", "holds no finished trial"), ("gone", "does not exist")]
)
def test_a_folder_without_trials_is_refused(
    tmp_path: Path, landscape: Landscape, name: str, said: str
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInputError, match=rf"search.warm_start\[0\]: .*{name} {said}"):
        start(tmp_path / "new", tmp_path / name, landscape)


def test_a_sweep_that_goes_on_from_its_copy_does_not_need_the_earlier_folder(
    tmp_path: Path, earlier: Path, landscape: Landscape
) -> None:
    start(tmp_path / "copy" / "new", earlier, landscape)
    gone, own = [str(tmp_path / "gone")], tmp_path / "other_node" / "new"
    check_folders(gone, own, str(tmp_path / "copy" / "new"))
    with pytest.raises(BadInputError, match="gone does not exist"):
        check_folders(gone, own, str(tmp_path / "no_copy"))
