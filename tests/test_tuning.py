"""Running trials with Ray Tune: a toy trial on a real local Ray."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from local_ray import local_ray
from ray import tune
from ray.tune.search import Searcher

from autotune.errors import SweepError
from autotune.placement import bundles
from autotune.settings import ResourcesConfig
from autotune.stop import StopOnRequest
from autotune.tuning import _connected, run_tuner

RESOURCES = ResourcesConfig(nodes=2, ranks_per_node=2, device="cpu")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Numbers(Searcher):
    """Suggests ``total`` trials; keeps what they report."""

    def __init__(self, total: int) -> None:
        super().__init__()
        self.left = list(range(total))
        self.told: list[dict[str, Any]] = []
        self.is_closed = False

    def suggest(self, trial_id: str) -> Any:
        if self.is_closed or not self.left:
            return Searcher.FINISHED
        return {"number": self.left.pop(0)}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        self.told.append(json.loads(result["told"]))

    def close(self) -> None:
        self.is_closed = True

    def save(self, checkpoint_path: str) -> None: ...

    def restore(self, checkpoint_path: str) -> None: ...


class Toy(tune.Trainable):
    def setup(self, config: dict[str, Any], mark: Path | None = None) -> None:
        self._number, self._mark = config["number"], mark

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._number = new_config["number"]
        return True

    def step(self) -> dict[str, Any]:
        group = ray.util.get_current_placement_group()
        assert group is not None
        if self._mark is not None:
            self._mark.touch()
        told = {
            "number": self._number,
            "bundles": group.bundle_specs,
            "reserved": ray.get_runtime_context().get_assigned_resources(),
        }
        return {"done": True, "told": json.dumps(told)}


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with local_ray(num_cpus=4):
        yield


def trainable(**parameters: Any) -> Any:
    return tune.with_resources(
        tune.with_parameters(Toy, **parameters),
        tune.PlacementGroupFactory([{}, *bundles(RESOURCES)], strategy="PACK"),
    )


def test_a_trial_holds_one_bundle_a_node_and_nothing_for_itself(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    searcher = Numbers(2)
    run_tuner(searcher, trainable(), max_concurrent=1, callbacks=[])
    assert [told["number"] for told in searcher.told] == [0, 1]
    for told in searcher.told:
        assert told["bundles"] == [{"CPU": 2.0}, {"CPU": 2.0}]
        assert told["reserved"] == {}
    assert list(tmp_path.glob("autotune_tune_*")) == []


def test_a_request_ends_the_run_after_the_trial_that_runs(cluster: None, tmp_path: Path) -> None:
    request = tmp_path / "stop.request"
    searcher = Numbers(50)
    stop = StopOnRequest(request, searcher)
    run_tuner(searcher, trainable(mark=request), max_concurrent=1, callbacks=[stop])
    assert stop.is_requested
    assert 1 <= len(searcher.told) < 50


def test_a_request_of_an_earlier_run_is_forgotten(tmp_path: Path) -> None:
    (tmp_path / "stop.request").touch()
    StopOnRequest(tmp_path / "stop.request", Numbers(1))
    assert not (tmp_path / "stop.request").exists()


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("nonsense", "Invalid address format"),
        ("127.0.0.1:1", "Connection refused"),
        ("host.invalid:6379", "not known|resolution"),
    ],
)
def test_an_address_without_a_cluster_is_said_at_once(address: str, reason: str) -> None:
    with pytest.raises(SweepError, match=f"no Ray cluster .*{address}: .*{reason}.*ray start"):
        with _connected(address=address):
            pass
