"""Trials that are over give their place back while others run: toy trials on a real local Ray."""

import time
from pathlib import Path
from typing import Any

import pytest
from local_ray import local_ray
from ray import tune
from ray.tune.search import Searcher

from autotune.tuning import run_tuner

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Several(Searcher):
    """Runs trials at once; a lost one comes again."""

    def __init__(self, total: int) -> None:
        super().__init__()
        self.left = list(range(total))
        self.live: dict[str, int] = {}
        self.finished: list[int] = []

    def has_next(self) -> bool:
        return bool(self.left)

    def suggest(self, trial_id: str) -> Any:
        if not self.left:
            return None if self.live else Searcher.FINISHED
        self.live[trial_id] = self.left.pop(0)
        return {"number": self.live[trial_id]}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        number = self.live.pop(trial_id)
        if error or result is None:
            self.left.append(number)
        else:
            self.finished.append(number)

    def save(self, checkpoint_path: str) -> None: ...

    def restore(self, checkpoint_path: str) -> None: ...


class OneWaits(tune.Trainable):
    """Trial 0 waits until trial 1 has run and given its placement group back, then is lost once."""

    def setup(self, config: dict[str, Any], folder: Path | None = None) -> None:
        assert folder is not None
        self._number, self._has_run = config["number"], folder / "has_run"
        self._was_alone = folder / "was_alone"

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._number = new_config["number"]
        return True

    def step(self) -> dict[str, Any]:
        if self._number == 1:
            self._has_run.touch()
        elif not self._was_alone.exists():
            self._was_alone.write_text(str(self._waits_until_alone()))
            raise RuntimeError("this trial is lost once")
        return {"done": True}

    def _waits_until_alone(self) -> bool:
        from ray.util.placement_group import placement_group_table

        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s:
            groups = placement_group_table().values()
            if self._has_run.exists() and [g["state"] for g in groups].count("CREATED") == 1:
                return True
            time.sleep(0.2)
        return False


def test_a_trial_that_nothing_follows_frees_its_place_while_others_run(tmp_path: Path) -> None:
    searcher = Several(2)
    trainable = tune.with_resources(
        tune.with_parameters(OneWaits, folder=tmp_path),
        tune.PlacementGroupFactory([{}, {"CPU": 2.0}]),
    )
    with local_ray(num_cpus=4):
        run_tuner(
            searcher, trainable, max_concurrent=2, callbacks=[], has_next=searcher.has_next
        )
    assert (tmp_path / "was_alone").read_text() == "True"
    # The one that was lost after the search had come to rest was tried again.
    assert searcher.finished == [1, 0]
