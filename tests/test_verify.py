"""The verification's jobs on a real local Ray, with a Trainable that plays back known results."""

import dataclasses
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from local_ray import local_ray
from ray import tune
from ray.tune.search import Searcher
from rich.console import Console
from test_config import MICRO, SweepFile
from verify_cases import OBJECTIVE, record

from autotune import verify
from autotune.claim import claim_line
from autotune.config import Sweep
from autotune.errors import BadInputError, SweepError
from autotune.objective import RECORD, TrialRecord, TrialState
from autotune.report.verify_text import verification_text
from autotune.settings import ObjectiveConfig
from autotune.store import VERIFICATION_FILE, SweepStore
from autotune.verification import Decision, VerifyJob, read_verification
from autotune.verify import (
    FILE,
    Candidate,
    Verifier,
    VerifySearcher,
    attempt_of,
    best_candidates,
    file_candidate,
)
from autotune.verl_bridge.config_file import job_file

SPEED = {2: 100.0, 4: 150.0, 1: 90.0}
"""Micro-batch size -> what a cold job measures."""


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    folder = tmp_path_factory.mktemp("job")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        file = SweepFile(folder)
        file.content["constraints"] = []
        file.content["verify"] = {"top_k": 1, "max_jobs": 8, "interval_width_ratio": 0.05}
        return file.load()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SweepStore]:
    store = SweepStore(tmp_path / "sweep")
    with store.locked():
        yield store


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[None]:
    with local_ray(num_cpus=2):
        yield


def candidate(sweep: Sweep, micro: int, number: int = 3) -> Candidate:
    setting = {**sweep.space.baseline(), MICRO: micro}
    return Candidate(number=number, setting=setting, overrides=sweep.space.overrides(setting))


def measure(config: dict[str, Any], number: int) -> TrialRecord:
    noise = 1 + 0.002 * (number % 3)
    return record(number, SPEED[config["setting"][MICRO]] * noise)


def play(verifier: Verifier, store: SweepStore, num_jobs: int) -> None:
    """Run jobs as Tune would, without it."""
    for _ in range(num_jobs):
        coming = verifier._next_job()
        assert coming is not None
        block, trial = coming
        config = verifier._config_of(trial, 0)
        verifier._take(block, trial, measure(config, config["number"]))


def verifier(
    sweep: Sweep, store: SweepStore, micro: int = 4, *, again: bool = False
) -> Verifier:
    candidates = [candidate(sweep, micro)]
    attempt = attempt_of(sweep, store, candidates, again=again)
    return Verifier(sweep, store, candidates, console=Console(quiet=True), attempt=attempt)


def test_a_faster_setting_is_proven_and_written(sweep: Sweep, store: SweepStore) -> None:
    begun = verifier(sweep, store)
    play(begun, store, 8)
    assert not begun.needs_jobs
    found = begun.run()
    assert found is not None and found.winner == 3
    assert found.candidates[0].decision is Decision.PROVEN
    assert read_verification(store.folder / VERIFICATION_FILE) == found
    assert "trial 3: PROVEN, the winner. 1.502 [" in verification_text(found, "gpu")


def test_a_sweep_that_replays_its_rollout_is_verified_on_whole_steps(
    sweep: Sweep, store: SweepStore
) -> None:
    config = dataclasses.replace(
        sweep.config,
        trial=dataclasses.replace(sweep.config.trial, fidelity="update"),
        objective=ObjectiveConfig(metric="update_only_tokens_per_s_per_gpu"),
    )
    begun = verifier(dataclasses.replace(sweep, config=config), store)
    assert begun._sweep.config == sweep.config
    play(begun, store, 8)
    found = begun.run()
    assert found is not None and (found.objective, found.winner) == (OBJECTIVE, 3)
    assert "8 cold jobs of whole steps" in verification_text(found, "gpu")


def test_a_slower_setting_is_worse(sweep: Sweep, store: SweepStore) -> None:
    begun = verifier(sweep, store, micro=1)
    play(begun, store, 8)
    found = begun.run()
    assert found is not None and found.winner is None
    assert found.candidates[0].decision is Decision.WORSE


def test_an_interrupted_verification_goes_on_where_it_stopped(
    sweep: Sweep, store: SweepStore
) -> None:
    play(verifier(sweep, store), store, 3)
    again = verifier(sweep, store)
    assert again._next_job() == (1, 0)
    play(again, store, 5)
    assert [job.trial for job in store.read_verify_jobs()] == [0, 3, 3, 0, 0, 3, 3, 0]


def test_a_finished_verification_runs_nothing_unless_asked(
    sweep: Sweep, store: SweepStore
) -> None:
    play(verifier(sweep, store), store, 8)
    assert not verifier(sweep, store).needs_jobs
    anew = verifier(sweep, store, again=True)
    assert anew._next_job() == (0, 0)
    play(anew, store, 1)
    assert verifier(sweep, store)._next_job() == (0, 3)


def test_jobs_of_another_protocol_do_not_count(sweep: Sweep, store: SweepStore) -> None:
    play(verifier(sweep, store), store, 8)
    trial = dataclasses.replace(sweep.config.trial, measured_steps=9)
    other = dataclasses.replace(sweep, config=dataclasses.replace(sweep.config, trial=trial))
    assert verifier(other, store)._next_job() == (0, 0)


def test_no_job_starts_when_the_time_is_over(sweep: Sweep, store: SweepStore) -> None:
    limited = dataclasses.replace(sweep.config.verify, max_wall_s=359.0)
    short = dataclasses.replace(sweep, config=dataclasses.replace(sweep.config, verify=limited))
    begun = verifier(short, store)
    play(begun, store, 6)  # one minute each
    found = begun.run()
    assert found is not None and "max_wall_s" in found.why_ended
    assert found.candidates[0].gain_ratio is not None


def test_the_best_feasible_settings_that_beat_the_baseline_are_verified(sweep: Sweep) -> None:
    two = dataclasses.replace(sweep.config.verify, top_k=2)
    wider = dataclasses.replace(sweep, config=dataclasses.replace(sweep.config, verify=two))
    values = [100.0, 99.0, 130.0, 160.0, 150.0]
    records = [record(number, value) for number, value in enumerate(values)]
    records[3] = record(3, 160.0, exposed=0.9)
    records = [
        dataclasses.replace(found, setting={MICRO: 2 + found.number}) for found in records
    ]
    assert [found.number for found in best_candidates(wider, records)] == [4, 2]
    assert best_candidates(sweep, records[:2]) == []
    assert best_candidates(sweep, []) == []


def test_a_files_setting_is_read_from_its_keys(sweep: Sweep, tmp_path: Path) -> None:
    tuned = candidate(sweep, 4)
    path = tmp_path / "best.yaml"
    elsewhere = "data.train_files=/other/train.parquet"
    overrides = [*sweep.base_overrides, *tuned.overrides, elsewhere]
    path.write_text(job_file("ppo_trainer", overrides))
    found, others = file_candidate(sweep, path)
    assert (found.setting, found.overrides) == (tuned.setting, tuned.overrides)
    assert others == ["data.train_files"]
    path.write_text(job_file("ppo_trainer", sweep.base_overrides))
    with pytest.raises(BadInputError, match="as the base job does"):
        file_candidate(sweep, path)


def test_a_files_setting_that_verl_would_refuse_is_not_started(
    sweep: Sweep, tmp_path: Path
) -> None:
    path = tmp_path / "best.yaml"
    odd = candidate(sweep, 3)
    path.write_text(job_file("ppo_trainer", [*sweep.base_overrides, *odd.overrides]))
    with pytest.raises(BadInputError, match=r"verl would refuse .*best.yaml.*3"):
        file_candidate(sweep, path)


def test_the_outcome_of_a_file_names_it_with_its_claim(
    sweep: Sweep, store: SweepStore, tmp_path: Path
) -> None:
    path = tmp_path / "best.yaml"
    line = claim_line(
        sweep="s", trial=8, objective=OBJECTIVE, proven=True, gain_ratio=[1.4, 1.5, 1.6]
    )
    path.write_text(f"{line}\n")
    output = io.StringIO()
    begun = Verifier(
        sweep,
        store,
        [candidate(sweep, 4, number=FILE)],
        console=Console(file=output, width=200),
        attempt=1,
        file=path,
    )
    play(begun, store, 8)
    found = begun.run()
    assert found is not None and found.file == str(path)
    assert "it comes out again" in verification_text(found, "gpu")
    assert read_verification(store.folder / VERIFICATION_FILE) == found
    assert "verify job 2 of at most 8, the file's setting: 150 tokens" in output.getvalue()


def searcher(jobs: list[VerifyJob], max_retries: int = 1) -> VerifySearcher:
    return VerifySearcher(
        next_job=lambda: (0, 0) if not jobs else None,
        make_config=lambda trial, attempt: {"number": len(jobs), "attempt": attempt},
        on_job=lambda block, trial, record: jobs.append(
            VerifyJob(plan="p", block=block, trial=trial, record=record)
        ),
        max_retries=max_retries,
    )


def ended(value: TrialRecord) -> dict[str, Any]:
    return {RECORD: json.dumps(value.to_dict())}


def test_one_job_runs_at_a_time() -> None:
    found = searcher([])
    assert found.suggest("a") == {"number": 0, "attempt": 0}
    assert found.suggest("b") is None
    found.on_trial_complete("a", ended(record(0, 100.0)))
    assert found.suggest("b") == Searcher.FINISHED


def test_a_lost_job_runs_again_and_is_given_up_after_its_retries() -> None:
    jobs: list[VerifyJob] = []
    found = searcher(jobs)
    found.suggest("a")
    found.on_trial_complete("a", error=True)
    assert found.suggest("b") == {"number": 0, "attempt": 1}
    lost = record(0, None, state=TrialState.INFRASTRUCTURE, cause="the node died")
    found.on_trial_complete("b", ended(lost))
    assert found.failure == "a job of trial 0 was lost 2 times: the node died"
    assert found.suggest("c") == Searcher.FINISHED
    assert jobs == []


class Playback(tune.Trainable):
    """Reports what a setting is known to measure; a setting without a known speed is lost."""

    def setup(self, config: dict[str, Any]) -> None:
        self.suggestion = config

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.suggestion = new_config
        return True

    def step(self) -> dict[str, Any]:
        if self.suggestion["setting"][MICRO] not in SPEED:
            raise RuntimeError("the node is gone")
        return {"done": True, **ended(measure(self.suggestion, self.suggestion["number"]))}


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_verification_runs_inside_ray_tune(
    sweep: Sweep, store: SweepStore, ray_cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The stand-in for real jobs; everything else is real.
    monkeypatch.setattr(verify, "trials_of", lambda *_arguments, **_options: Playback)
    found = verifier(sweep, store).run()
    assert found is not None and found.winner == 3
    assert [job.record.number for job in store.read_verify_jobs()] == list(range(found.num_jobs))
    assert found.candidates[0].objective is not None
    with pytest.raises(SweepError, match="lost 2 times"):
        verifier(sweep, store, micro=3).run()
    assert OBJECTIVE == found.objective
