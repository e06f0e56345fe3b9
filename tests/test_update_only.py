"""Real jobs on two gloo ranks whose rollout is generated once and replayed."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from quickstart_case import load_quickstart, quickstart_files, values

from autotune.config import Sweep
from autotune.in_order import Setting, SettingRun, run_live
from autotune.objective import Start, TrialState
from autotune.store import ROLLOUT_FOLDER
from autotune.tuning import cluster

STEPS = ["trial.warmup_steps=1", "trial.measured_steps=2", "trial.profiled_steps=1"]
SPEED = "update_only_tokens_per_s_per_gpu"
REPLAYING = ["trial.fidelity=update", f"objective.metric={SPEED}"]
OF_THE_BATCH = (
    "critic/score/mean",
    "response_length/mean",
    "prompt_length/mean",
    "perf/total_num_tokens",
)
# What is left of terms of size 1 in a loss depends on the order of additions.
OF_THE_UPDATE = {"actor/loss": 2e-7, "actor/pg_loss": 2e-7, "actor/grad_norm": 1e-9}

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1500)]


def settings_of(sweep: Sweep) -> list[Setting]:
    """The base job's own setting, one that keeps its engines, one that rebuilds them, and the first
    one again."""
    baseline = sweep.space.baseline()
    changes: list[dict[str, object]] = [
        {},
        {"ppo_micro_batch_size_per_gpu": 8, "log_prob_micro_batch_size_per_gpu": 4},
        {"enable_gradient_checkpointing": False, "reshard_after_forward": False},
        {},
    ]
    return [{**baseline, **change} for change in changes]  # type: ignore[dict-item]


@pytest.fixture(scope="module")
def in_root() -> Iterator[None]:
    with quickstart_files(), cluster(load_quickstart(*STEPS), None):
        yield


@pytest.fixture(scope="module")
def whole(in_root: None, tmp_path_factory: pytest.TempPathFactory) -> SettingRun:
    """The base job's own setting, whole steps."""
    sweep = load_quickstart(*STEPS)
    folder = tmp_path_factory.mktemp("whole")
    return run_live(sweep, [sweep.space.baseline()], folder / "logs")[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("replayed")


@pytest.fixture(scope="module")
def live(in_root: None, folder: Path) -> list[SettingRun]:
    """Four settings in one job, which generates the rollout first."""
    sweep = load_quickstart(*STEPS, *REPLAYING)
    return run_live(sweep, settings_of(sweep), folder / "live")


@pytest.fixture(scope="module")
def later(live: list[SettingRun], folder: Path) -> SettingRun:
    """A second job, which finds the rollout on disk and has nobody who could generate."""
    sweep = load_quickstart(*STEPS, *REPLAYING)
    return run_live(sweep, [sweep.space.baseline()], folder / "later")[0]


def test_every_setting_runs_to_its_end_without_a_word_of_whole_steps(
    live: list[SettingRun], later: SettingRun
) -> None:
    starts = [Start.COLD, Start.HOT, Start.ENGINE, Start.ENGINE, Start.COLD]
    assert [run.record.start for run in (*live, later)] == starts
    for run in (*live, later):
        record = run.record
        assert (record.state, record.cause) == (TrialState.COMPLETE, "")
        assert (record.metrics[SPEED] or 0) > 0 and (record.metrics["update_only_s"] or 0) > 0
        for name in ("throughput_tokens_per_s_per_gpu", "step_s", "kl_to_reference"):
            assert record.metrics[name] is None
            assert "the rollout was replayed" in record.absent[name]


def test_the_first_step_computes_what_that_of_a_whole_trial_does(
    live: list[SettingRun], later: SettingRun, whole: SettingRun
) -> None:
    for run in (live[0], live[-1], later):
        for metric, absolute in OF_THE_UPDATE.items():
            assert values(run, metric, [1]) == pytest.approx(
                values(whole, metric, [1]), rel=1e-6, abs=absolute
            )
        for metric in OF_THE_BATCH:
            assert values(run, metric, [1]) == pytest.approx(values(whole, metric, [1]), rel=1e-6)


def test_all_settings_see_the_same_batch_in_each_step(
    live: list[SettingRun], later: SettingRun
) -> None:
    for metric in OF_THE_BATCH:
        first = values(live[0], metric)
        for run in (*live[1:], later):
            assert values(run, metric) == pytest.approx(first, rel=1e-6)


def test_a_setting_computes_the_same_in_the_live_job_and_in_a_later_one(
    live: list[SettingRun], later: SettingRun
) -> None:
    for metric, absolute in OF_THE_UPDATE.items():
        for run in (live[-1], later):
            assert values(run, metric) == pytest.approx(
                values(live[0], metric), rel=1e-6, abs=absolute
            )


def test_nothing_is_generated_and_no_weights_are_handed_over(
    live: list[SettingRun], later: SettingRun, whole: SettingRun
) -> None:
    staleness = "training/off_policy/trajectory_staleness/mean"
    assert values(whole, staleness) == [0, 0, 0, 0]
    for run in (*live, later):
        assert values(run, staleness) == [0, 1, 2, 3]
        for step in run.steps:
            assert not {"timing_s/gen", "timing_s/update_weights"} & step.metrics.keys()
        assert not {"phase_gen_s", "phase_update_weights_s"} & run.record.metrics.keys()
    assert {"phase_gen_s", "phase_update_weights_s"} <= whole.record.metrics.keys()


def test_the_first_job_ends_its_rollout_servers_and_a_later_one_starts_none(
    folder: Path, live: list[SettingRun], later: SettingRun
) -> None:
    # verl prints the addresses of servers that it has started.
    first, second = (
        (folder / name / "trial_0000.log").read_text(encoding="utf-8") for name in ("live", "later")
    )
    assert first.count("LLMServerManager: [") == 1
    assert first.count("rollout: 1 servers with 1 processes are gone") == 1
    assert "LLMServerManager: [" not in second and "AgentLoopWorker" not in second


def test_the_rollout_is_kept_once_a_step_and_read_from_there(
    folder: Path, later: SettingRun
) -> None:
    kept = sorted(path.name for path in (folder / ROLLOUT_FOLDER / "batches").iterdir())
    assert kept == [f"step_{step:04d}.safetensors" for step in (1, 2, 3, 4)]


def test_consistency_is_measured_as_in_whole_steps(
    live: list[SettingRun], whole: SettingRun
) -> None:
    for name in ("kl_std", "kl_bias", "rank_divergence", "probe_kl", "exposed_comm_ratio"):
        assert all(run.record.metrics[name] is not None for run in (*live, whole)), name
    assert live[0].record.metrics["probe_kl"] == pytest.approx(
        whole.record.metrics["probe_kl"], rel=1e-4
    )
