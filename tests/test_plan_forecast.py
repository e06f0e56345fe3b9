"""What is predicted of the quickstart before it runs, and from which speed of the links."""

import dataclasses
import json
from pathlib import Path

import pytest
from quickstart_case import QUICKSTART, ROOT, TINY

from autotune.calibrate import CACHE_FOLDER
from autotune.config import Sweep, load_sweep
from autotune.errors import BadInputError
from autotune.models.calibration_record import CalibrationRecord, read_record
from autotune.plan_forecast import Basis, Forecast, Forecasts, basis_of, forecast, forecast_lines
from autotune.store import CALIBRATION_FILE

MEASURED = read_record(ROOT / "tests" / "data" / "calibration_by_hand.json")


def load(folder: Path, *, model: dict[str, object] | None = None) -> Sweep:
    """The quickstart, of its model the configuration alone."""
    path = folder / "model"
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(TINY if model is None else model))
    content = QUICKSTART.read_text().replace("=demo/tiny/model", f"={path}")
    file = folder / "sweep.yaml"
    file.write_text(content)
    return load_sweep(file, [f"output_dir={folder}"], is_elsewhere=True)


def assumed(sweep: Sweep) -> Basis | None:
    return basis_of(sweep, file=None, link=None, flops_per_s=None)


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Forecasts:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        sweep = load(tmp_path_factory.mktemp("sweep"))
        return forecast(sweep, assumed(sweep))


def shares(found: Forecasts) -> dict[str, float]:
    everything: list[Forecast] = [found.base, *found.corners]
    return {
        each.name: each.communication.exposed_ratio
        for each in everything
        if each.communication is not None
    }


def test_every_knobs_ends_are_predicted_apart_from_the_base_jobs_own(found: Forecasts) -> None:
    assert list(shares(found)) == [
        "the base job",
        "ppo_micro_batch_size_per_gpu=1",
        "ppo_micro_batch_size_per_gpu=16",
        "log_prob_micro_batch_size_per_gpu=1",
        "log_prob_micro_batch_size_per_gpu=16",
        "bucket_size=500000",
        "reshard_after_forward=False",
        "enable_gradient_checkpointing=False",
        "ends of least exposed share, together",
        "ends of most exposed share, together",
        "ends of least memory, together",
        "ends of most memory, together",
    ]


def test_larger_micro_batches_and_kept_parameters_expose_less(found: Forecasts) -> None:
    by_name = shares(found)
    base = by_name["the base job"]
    assert by_name["ppo_micro_batch_size_per_gpu=16"] < base
    assert by_name["ppo_micro_batch_size_per_gpu=1"] > base
    assert by_name["reshard_after_forward=False"] < base
    assert by_name["ends of least exposed share, together"] == min(by_name.values())
    assert by_name["ends of most exposed share, together"] == max(by_name.values())


def test_the_communication_of_the_base_job_is_that_of_its_collectives(found: Forecasts) -> None:
    # 16 sequences a rank in micro-batches of two: eight micro-batches in update, scoring and
    # reference, each of which gathers the root, embedding, head and four layers.
    hidden, vocabulary = 64, 260
    layer = hidden * (2 * 6 * 16 + 3 * 128) + 2 * hidden
    model = 4 * (4 * layer + 2 * vocabulary * hidden + hidden)
    units, passes = 7, 8
    # An update gathers twice and reduces; scoring and reference gather once.
    num_collectives, num_models = 5 * units * passes, 5 * passes
    tensors, latency_s, bytes_per_s = 4 * 9 + 3, 300e-6, 2e9
    expected = (num_collectives + tensors) * latency_s + (num_models + 1) * model / bytes_per_s
    assert found.base.communication is not None
    assert found.base.communication.communication_s == pytest.approx(expected)


def write(record: CalibrationRecord, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(record.to_json())
    return path


def on_cpu(measured_at: str) -> CalibrationRecord:
    return dataclasses.replace(MEASURED, device="cpu", measured_at=measured_at)


def test_without_a_calibration_the_links_are_assumed_and_that_is_said(tmp_path: Path) -> None:
    sweep = load(tmp_path)
    basis = assumed(sweep)
    assert basis is not None and basis.is_assumed
    text = "\n".join(forecast_lines(forecast(sweep, basis)))
    assert "Links and devices, ASSUMED: gloo through the host's memory: 1 GB/s a rank" in text


def test_the_last_calibration_of_trials_of_this_size_is_taken(tmp_path: Path) -> None:
    sweep = load(tmp_path)
    cache = tmp_path / CACHE_FOLDER
    write(on_cpu("2026-01-01T00:00:00+00:00"), cache / "old.json")
    write(on_cpu("2026-02-01T00:00:00+00:00"), cache / "new.json")
    write(MEASURED, cache / "gpu.json")
    write(dataclasses.replace(on_cpu("2026-03-01"), num_nodes=2), cache / "two_nodes.json")
    basis = assumed(sweep)
    assert basis is not None and not basis.is_assumed
    assert "2026-02-01" in basis.text and "new.json" in basis.text
    text = "\n".join(forecast_lines(forecast(sweep, basis)))
    assert "Links and devices, measured: 2 ranks on 1 node" in text


def test_a_cached_calibration_of_another_version_is_passed_over(tmp_path: Path) -> None:
    sweep = load(tmp_path)
    cache = tmp_path / CACHE_FOLDER
    write(on_cpu("2026-02-01T00:00:00+00:00"), cache / "now.json")
    text = (cache / "now.json").read_text().replace('"schema_version": 2', '"schema_version": 1')
    (cache / "before.json").write_text(text)
    basis = assumed(sweep)
    assert basis is not None and "now.json" in basis.text


def test_the_sweeps_own_calibration_comes_first(tmp_path: Path) -> None:
    sweep = load(tmp_path)
    write(on_cpu("2026-02-01T00:00:00+00:00"), tmp_path / CACHE_FOLDER / "new.json")
    write(on_cpu("2026-01-01T00:00:00+00:00"), tmp_path / sweep.config.name / CALIBRATION_FILE)
    basis = assumed(sweep)
    assert basis is not None and "2026-01-01" in basis.text


def test_what_the_user_names_wins(tmp_path: Path) -> None:
    sweep = load(tmp_path)
    write(on_cpu("2026-02-01T00:00:00+00:00"), tmp_path / CACHE_FOLDER / "new.json")
    basis = basis_of(sweep, file=None, link="ethernet", flops_per_s=None)
    assert basis is not None and basis.is_assumed and basis.text.startswith("Ethernet")
    file = write(on_cpu("2025-01-01T00:00:00+00:00"), tmp_path / "mine.json")
    basis = basis_of(sweep, file=str(file), link=None, flops_per_s=None)
    assert basis is not None and basis.constants == MEASURED.constants


def test_a_calibration_of_another_number_of_ranks_is_refused(tmp_path: Path) -> None:
    constants = dataclasses.replace(MEASURED.constants, world_size=8)
    file = write(dataclasses.replace(MEASURED, constants=constants), tmp_path / "mine.json")
    with pytest.raises(BadInputError, match="measured with 8 ranks, and a trial has 2"):
        basis_of(load(tmp_path), file=str(file), link=None, flops_per_s=None)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"model_type": "mamba"}, "a model of a kind that is not modelled"),
        ({}, "which is no folder with a config.json here"),
    ],
    ids=["unknown model", "empty configuration"],
)
def test_what_cannot_be_predicted_is_said_in_words(
    tmp_path: Path, model: dict[str, object], words: str
) -> None:
    sweep = load(tmp_path, model=model)
    text = "\n".join(forecast_lines(forecast(sweep, assumed(sweep))))
    assert words in text


def test_a_calibration_without_the_jobs_dtype_predicts_nothing(tmp_path: Path) -> None:
    constants = dataclasses.replace(MEASURED.constants, flops_per_s={"bfloat16": 1e12})
    file = write(dataclasses.replace(MEASURED, constants=constants), tmp_path / "mine.json")
    sweep = load(tmp_path)
    basis = basis_of(sweep, file=str(file), link=None, flops_per_s=None)
    found = forecast(sweep, basis)
    assert found.base.communication is None and "has no float32" in found.base.absent
    assert found.base.memory_bytes is not None
