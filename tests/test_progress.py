"""What Tune's events become: steps on disk, and lines for whoever watches."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from objective_cases import THROUGHPUT, record, step
from rich.console import Console

from autotune.objective import RECORD, STEP_RECORD, StepKind, TrialRecord, TrialState
from autotune.progress import Progress
from autotune.report.live import LiveTable
from autotune.report.text import SweepOutline
from autotune.store import SweepStore

OUTLINE = SweepOutline(
    name="demo",
    objective=THROUGHPUT,
    constraints=[],
    baseline={},
    num_trials=9,
    steps_per_trial=6,
    max_concurrent=1,
    fidelity="full",
)
ENDED = SimpleNamespace(config={"number": 1, "setting": {}})
"""All that is asked of Tune's trial."""


class Watched:
    """A callback, what it printed, and why it had the sweep ended."""

    def __init__(self, store: SweepStore, finished: dict[int, TrialRecord]) -> None:
        self.output = io.StringIO()
        self.failures: list[str] = []
        self.progress = Progress(
            store,
            LiveTable(OUTLINE, Console(file=self.output, width=200)),
            record_of=finished.get,
            on_failure=self.failures.append,
        )
        self.progress.on_trial_start(0, [], ENDED)

    def tell(self, **result: Any) -> None:
        self.progress.on_trial_result(0, [], ENDED, result)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SweepStore]:
    store = SweepStore(tmp_path / "sweep")
    with store.locked():
        yield store


def step_text() -> str:
    found = step(1, StepKind.MEASURED, metrics={"timing_s/step": 2.0})
    return json.dumps({**found.to_dict(), "number": 1})


def test_a_step_is_kept_and_shown(store: SweepStore) -> None:
    watched = Watched(store, {})
    watched.tell(**{STEP_RECORD: step_text()})
    assert [found.step for found in store.read_steps(1)] == [1]
    assert "trial 1 step 1 of 6, 2 s" in watched.output.getvalue()


def test_a_step_that_cannot_be_kept_ends_the_sweep(store: SweepStore) -> None:
    store.steps_path.mkdir()
    watched = Watched(store, {})
    watched.tell(**{STEP_RECORD: step_text()})
    assert "steps.jsonl could not be written" in watched.failures[0]


def test_a_trial_that_ended_is_shown_without_reading_all_records_again(store: SweepStore) -> None:
    store.trials_path.write_text("not to be read\n")
    watched = Watched(store, {1: record(1)})
    watched.progress.on_trial_complete(0, [], ENDED)
    assert "trial 1 feasible" in watched.output.getvalue()


def test_a_lost_trial_is_shown_as_lost_alone(store: SweepStore) -> None:
    lost = record(1, state=TrialState.INFRASTRUCTURE, feasible=False, cause="the node died")
    watched = Watched(store, {1: lost})
    watched.tell(**{RECORD: json.dumps(lost.to_dict())})
    watched.progress.on_trial_complete(0, [], ENDED)
    assert watched.output.getvalue().count("trial 1") == 2
    assert "trial 1 was lost: the node died" in watched.output.getvalue()
