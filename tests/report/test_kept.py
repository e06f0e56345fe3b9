"""A sweep in one small file, and the tables of README that are made of such files."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from sweep_maker import THROUGHPUT, SweepSpec, make_sweep

from autotune.report.kept import kept_record, table
from autotune.report.reading import read_sweep

ROOT = Path(__file__).parents[2]
MEASURED = sorted((ROOT / "landscapes" / "measured").glob("*.json"))


def test_a_sweeps_record_is_a_small_file_with_its_command(tmp_path: Path) -> None:
    store = make_sweep(tmp_path, SweepSpec(num_trials=6, budget=20))
    record = kept_record(read_sweep(store.folder), "autotune sweep my.yaml")
    assert record["command"] == "autotune sweep my.yaml"
    assert [trial["number"] for trial in record["trials"]] == list(range(6))
    assert record["trials"][0]["metrics"][THROUGHPUT] > 0
    assert len(json.dumps(record)) < 10_000
    assert str(tmp_path) not in json.dumps(record)


def test_a_table_says_what_changed_and_by_how_much() -> None:
    trials: list[dict[str, Any]] = [
        {"setting": {"bucket_size": 0}, "metrics": {THROUGHPUT: 1000.0, "step_s": 20.0}},
        {"setting": {"bucket_size": 200}, "metrics": {THROUGHPUT: 2500.0, "step_s": 8.0}},
        {"setting": {"bucket_size": 400}, "metrics": {}},
    ]
    assert table({"trials": trials}, (THROUGHPUT, "step_s")).splitlines() == [
        "| setting | throughput_tokens_per_s_per_gpu | step_s | of the baseline |",
        "|---|---|---|---|",
        "| baseline | 1000 tokens/s/GPU | 20 s | 1.00 times |",
        "| bucket_size=200 | 2500 tokens/s/GPU | 8 s | 2.50 times |",
        "| bucket_size=400 | n/a | n/a |  |",
    ]


@pytest.mark.parametrize("path", MEASURED, ids=lambda path: path.stem)
def test_readme_shows_the_table_of_every_measured_sweep(path: Path) -> None:
    columns = runpy.run_path(str(ROOT / "scripts" / "gpu" / "keep.py"))["COLUMNS"]
    kept = json.loads(path.read_text())
    assert kept["command"] and kept["versions"]["torch"]
    assert table(kept, columns) in (ROOT / "README.md").read_text()
