"""What ``--json`` prints: fields that others may rely on, and nothing that JSON does not have."""

import json
from pathlib import Path

import pytest
from report_cases import sweep_data, trial, two_objectives
from sweep_maker import SweepSpec, make_sweep

from autotune.report.answer import answer
from autotune.report.compare import compare
from autotune.report.documents import (
    comparison_document,
    list_document,
    plain,
    report_document,
    trial_document,
)
from autotune.report.overview import overview, view_trial
from autotune.report.reading import SweepData, read_sweep


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> SweepData:
    return read_sweep(make_sweep(tmp_path_factory.mktemp("sweeps"), SweepSpec(num_trials=8)).folder)


def test_the_report_keeps_the_fields_of_version_1(data: SweepData) -> None:
    document = report_document(answer(data), data)
    assert (document["schema"], document["schema_version"]) == ("autotune.report", 1)
    assert document.keys() >= {
        *("sweep", "folder", "verdict", "objective", "unit", "num_trials", "num_finished"),
        *("is_running", "winner", "baseline", "closest", "gain", "limits", "binding", "changes"),
        *("overrides", "production", "costs", "trials", "calibration", "versions"),
    }
    assert document["gain"].keys() >= {"ratio", "low", "high", "basis"}
    assert document["limits"][0].keys() >= {
        *("metric", "max", "value", "reason", "baseline", "headroom_ratio", "num_refused"),
    }


def test_several_trials_stand_as_numbers_too() -> None:
    data = two_objectives([trial(0), trial(1, 150.0, memory=0.7)])
    document = report_document(answer(data), data)
    assert (document["front"], document["repetitions"]) == ([1, 0], [1])


def test_trials_stand_as_numbers_beside_their_records(data: SweepData) -> None:
    document = report_document(answer(data), data)
    numbers = [record["number"] for record in document["trials"]]
    assert document["baseline"] == 0 and document["winner"] in numbers
    assert document["trials"][0]["outcome"] == "feasible"


@pytest.mark.parametrize("kind", ["report", "list", "trial", "comparison"])
def test_every_document_is_json_and_names_its_schema(kind: str, data: SweepData) -> None:
    document = {
        "report": lambda: report_document(answer(data), data),
        "list": lambda: list_document([overview(data)]),
        "trial": lambda: trial_document(view_trial(data, 1)),
        "comparison": lambda: comparison_document(compare(f"{data.folder}:0", str(data.folder))),
    }[kind]()
    read = json.loads(json.dumps(document, allow_nan=False))
    assert read == document
    assert (read["schema"], read["schema_version"]) == (f"autotune.{kind}", 1)


def test_a_number_that_is_not_finite_is_null() -> None:
    assert plain({"a": float("nan"), "b": [float("inf"), 1.0], "c": Path("/x")}) == {
        "a": None,
        "b": [None, 1.0],
        "c": "/x",
    }


def test_a_sweep_without_a_winner_has_null_where_it_would_stand() -> None:
    data = sweep_data([trial(0, memory=0.99)])
    document = report_document(answer(data), data)
    assert document["winner"] is None and document["gain"] is None
    assert document["closest"] == 0
