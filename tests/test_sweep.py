"""What a sweep adds to its base job before the first trial, and what it keeps about its runs."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from test_config import SweepFile

from autotune.config import Sweep, to_yaml
from autotune.errors import SweepError
from autotune.models.calibration import Calibration, CollectiveCost
from autotune.models.calibration_record import CalibrationRecord
from autotune.store import TRIALS_FILE
from autotune.sweep import identity, opened, with_calibration, with_this_run
from autotune.verl_bridge.overrides import leaves
from autotune.versions import versions

ACTOR_OVERLAP = "actor_rollout_ref.actor.fsdp_config.wrap_policy.overlap"
COST = CollectiveCost(latency_s=1e-4, bandwidth_bytes_per_s=1e9)
RECORD = CalibrationRecord(
    constants=Calibration(
        world_size=2,
        all_gather=COST,
        reduce_scatter=COST,
        all_reduce=COST,
        flops_per_s={"float32": 1e11},
        launch_overhead_s=1e-6,
        copy_bytes_per_s=1e10,
    ),
    device="cpu",
    device_name="CPU",
    num_nodes=1,
    backend="gloo",
    samples={},
    key="key",
    measured_at="2026-01-01T00:00:00+00:00",
    took_s=1.0,
)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepFile:
    monkeypatch.chdir(tmp_path)
    return SweepFile(tmp_path)


def load(file: SweepFile, knobs: Mapping[str, object]) -> Sweep:
    return file.set("knobs", dict(knobs)).load()


def test_a_sweep_without_planned_times_stays_as_it_is(file: SweepFile) -> None:
    sweep = load(file, {"bucket_size": {"choices": [0, 25e6]}})
    assert with_calibration(sweep, RECORD) is sweep


def test_planned_times_bring_the_clusters_calibration_into_the_base_job(file: SweepFile) -> None:
    sweep = with_calibration(load(file, {"overlap_threshold": {"choices": [0.3, 0.6]}}), RECORD)
    flat = leaves(sweep.base_config)
    assert flat[f"{ACTOR_OVERLAP}.calibration.all_gather.bandwidth_bytes_per_s"] == 1e9
    assert flat[f"{ACTOR_OVERLAP}.sequence_tokens"] == 96
    assert any(text.startswith(f"++{ACTOR_OVERLAP}.calibration=") for text in sweep.base_overrides)


def test_a_knob_that_is_a_time_without_a_calibration_ends_the_sweep(file: SweepFile) -> None:
    sweep = load(file, {"min_overlap_time_s": {"choices": [0.1, 0.2]}})
    with pytest.raises(SweepError, match="min_overlap_time_s is a time, and .* not calibrated"):
        with_calibration(sweep, None)


def test_a_time_in_the_base_job_needs_a_calibration_too(file: SweepFile) -> None:
    file.add(f"+{ACTOR_OVERLAP}.min_overlap_time_s=0.1")
    sweep = load(file, {"bucket_size": {"choices": [0, 25e6]}})
    with pytest.raises(SweepError, match="min_overlap_time_s is a time"):
        with_calibration(sweep, None)


def test_a_copy_with_records_of_another_run_is_refused_and_stays(file: SweepFile) -> None:
    copy, own = (file.folder / name / "tiny" / TRIALS_FILE for name in ("copies", "sweeps"))
    for path, text in ((copy, '{"run": "a"}\n' * 20), (own, '{"run": "b"}\n')):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    sweep = file.set("output_uri", str(file.folder / "copies")).load()
    with pytest.raises(SweepError, match="different"), opened(sweep):
        pass
    assert copy.read_text() == '{"run": "a"}\n' * 20
    assert own.read_text() == '{"run": "b"}\n'


def test_the_versions_of_every_run_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "versions.yaml"
    path.write_text(with_this_run(path))
    path.write_text(with_this_run(path))
    runs = yaml.safe_load(path.read_text())
    assert [run["versions"] for run in runs] == [dict(versions())] * 2


def test_a_sweep_under_another_fidelity_is_another_sweep(file: SweepFile) -> None:
    objective = "objective.metric=update_only_s"
    full = to_yaml(file.load(objective, "search.num_trials=5").config)
    assert identity(full) == identity(to_yaml(file.load(objective).config))
    update = to_yaml(file.load(objective, "trial.fidelity=update").config)
    assert identity(full) != identity(update)
