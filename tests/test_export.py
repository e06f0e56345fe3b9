"""The files of an export: what they hold, that they are the winner's job, and what is refused."""

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from test_sweep import RECORD
from test_verification import verification
from verify_cases import LIMIT, OBJECTIVE

from autotune.claim import read_claim
from autotune.commands import export as export_command
from autotune.config import to_yaml
from autotune.errors import BadInputError, ExitCode, SweepError
from autotune.export import (
    DIFF_FILE,
    OVERRIDES_FILE,
    SCRIPT_FILE,
    BaseJob,
    Exported,
    export,
)
from autotune.knobs import KnobValue
from autotune.launch_script import parse_launch_script, script_of
from autotune.objective import TrialRecord, TrialState, evaluate
from autotune.protocol import protocol_overrides
from autotune.report.page import HTML_FILE
from autotune.report.text import format_value
from autotune.settings import (
    BaseJobConfig,
    DomainConfig,
    ObjectiveConfig,
    ResourcesConfig,
    SearchConfig,
    SweepConfig,
    TrialConfig,
)
from autotune.store import (
    BASE_JOB_FILE,
    BEST_FILE,
    CALIBRATION_FILE,
    CONFIG_FILE,
    VERIFICATION_FILE,
    VERSIONS_FILE,
    SweepStore,
)
from autotune.verification import Decision
from autotune.verl_bridge.config_file import compose_file, differences
from autotune.verl_bridge.overrides import compose_base

UPDATE_ONLY = "update_only_tokens_per_s_per_gpu"
MICRO, SCORING = "ppo_micro_batch_size_per_gpu", "log_prob_micro_batch_size_per_gpu"
KEY = f"actor_rollout_ref.actor.{MICRO}"
SCORING_KEYS = [f"actor_rollout_ref.{role}.{SCORING}" for role in ("rollout", "ref")]
BASE = [
    "algorithm.adv_estimator=grpo",
    "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
    f"{KEY}=4",
    "trainer.logger=[console,wandb]",
    "trainer.project_name='my project'",
]
RESOURCES = ["trainer.n_gpus_per_node=2"]
SCRIPT = f"""#!/bin/bash
export WANDB_API_KEY=0123456789abcdef
MB=4
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    +actor_rollout_ref.model.override_config.attn_implementation=sdpa \\
    {KEY}=$MB \\
    trainer.logger='[console,wandb]' \\
    trainer.project_name='my project' "$@"
"""
VERSIONS = {"verl": "0.9.1", "autotune-commit": "abc"}
PROTOCOL = TrialConfig(
    warmup_steps=1,
    measured_steps=2,
    profiled_steps=1,
    seed=7,
    startup_timeout_s=60,
    step_timeout_s=60,
)


def trial(number: int, micro: int, throughput: float, exposed: float = 0.1) -> TrialRecord:
    metrics: dict[str, float | None] = {OBJECTIVE: throughput, LIMIT.metric: exposed}
    violations, feasible = evaluate(metrics, [LIMIT])
    setting: dict[str, KnobValue] = {MICRO: micro, SCORING: micro}
    overrides = [f"{KEY}={micro}", *(f"{key}={micro}" for key in SCORING_KEYS)]
    return TrialRecord(
        number=number,
        state=TrialState.COMPLETE,
        params=setting,
        setting=setting,
        overrides=overrides if micro != 4 else [],
        metrics=metrics,
        absent={},
        violations=violations,
        feasible=feasible,
        cause="",
        started_at="2026-01-01T00:00:00+00:00",
        ended_at="2026-01-01T00:01:00+00:00",
        retries=0,
    )


TRIALS = (trial(0, 4, 100.0), trial(1, 1, 50.0), trial(2, 16, 300.0, exposed=0.5), trial(3, 8, 150))


def make_folder(
    folder: Path,
    *,
    trials: Sequence[TrialRecord] = TRIALS,
    decision: Decision | None = Decision.PROVEN,
    base: Sequence[str] = BASE,
    script: str | None = None,
    fidelity: str = "full",
) -> Path:
    config = SweepConfig(
        name="tiny",
        base=BaseJobConfig(config_name="ppo_trainer", overrides=list(base)),
        resources=ResourcesConfig(nodes=1, ranks_per_node=2, device="cpu"),
        knobs={name: DomainConfig(choices=[1, 4, 8, 16]) for name in (MICRO, SCORING)},
        trial=dataclasses.replace(PROTOCOL, fidelity=fidelity),
        objective=ObjectiveConfig(metric=OBJECTIVE if fidelity == "full" else UPDATE_ONLY),
        search=SearchConfig(
            sampler="tpe", num_trials=4, max_concurrent=1, seed=1, num_startup_trials=2
        ),
        constraints=[LIMIT],
    )
    job = BaseJob(
        config_name="ppo_trainer",
        overrides=[*base, *RESOURCES],
        script=script if script is not None else script_of("ppo_trainer", base),
        script_name="launch.sh",
        measured=[],
    )
    store = SweepStore(folder)
    with store.locked():
        store.write(CONFIG_FILE, to_yaml(config))
        store.write(VERSIONS_FILE, yaml.safe_dump([{"versions": VERSIONS}]))
        store.write(BASE_JOB_FILE, job.to_json())
        store.write(CALIBRATION_FILE, RECORD.to_json())
        for record in trials:
            store.append_trial(record)
        if decision is not None:
            store.write(VERIFICATION_FILE, json.dumps(verification(decision).to_dict()))
    return folder


@pytest.fixture(scope="module")
def proven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_folder(tmp_path_factory.mktemp("sweep"), script=SCRIPT)
    exported = export(folder, folder / "out", allow_unproven=False)
    names = (BEST_FILE, OVERRIDES_FILE, SCRIPT_FILE, DIFF_FILE)
    assert exported == Exported(files=[folder / "out" / name for name in names], refused=None)
    return folder / "out"


def test_best_yaml_is_base_job_and_winner_and_nothing_of_the_trial_protocol(proven: Path) -> None:
    wanted = [*BASE, *RESOURCES, *TRIALS[3].overrides]
    found = compose_file(proven / BEST_FILE)
    assert differences(compose_base("ppo_trainer", wanted), found) == []
    ran = compose_base("ppo_trainer", [*wanted, *protocol_overrides(PROTOCOL)])
    protocol = {text.partition("=")[0] for text in protocol_overrides(PROTOCOL)}
    apart = set(differences(ran, found))
    assert apart and all(key.startswith(tuple(protocol)) for key in apart)


def test_every_tuned_setting_says_what_it_was_is_and_did(proven: Path) -> None:
    text = (proven / BEST_FILE).read_text()
    assert text.count("tuned: ") == 3
    comment = f"# tuned: {MICRO} was 4, is 8; not measured by itself"
    lines = [line.strip() for line in text.splitlines()]
    assert lines[lines.index(comment) + 1] == f"{MICRO}: 8"


def test_the_head_says_how_sure_it_is_where_and_with_what_it_was_measured(proven: Path) -> None:
    text = (proven / BEST_FILE).read_text()
    assert "commit abc: sweep 'tiny', trial 3." in text
    assert "PROVEN: 1.50 times the base job" in text and "95 % interval 1.40 to 1.60" in text
    assert f"this setting: {format_value(OBJECTIVE, 150)} (149 to 151)" in text
    assert "exposed_comm_ratio: 10 % (9 to 11), limit 20 %" in text
    assert "verified 2026-01-01, on 1 node x 2 CPU, world size 2." in text and "verl 0.9.1" in text
    assert "Links (gloo): all-gather 1 GB/s after 100 us, calibrated 2026-01-01." in text
    claim = read_claim(text)
    assert claim is not None and claim["gain_ratio"] == [1.4, 1.5, 1.6] and claim["proven"]


@pytest.mark.parametrize("num_pairs", [2, 3, 7])
@pytest.mark.parametrize("decision", [Decision.PROVEN, Decision.NOT_PROVEN])
def test_the_head_counts_the_pairs_that_ran(
    num_pairs: int, decision: Decision, tmp_path: Path
) -> None:
    folder = make_folder(tmp_path / "sweep")
    found = verification(decision).to_dict()
    found["candidates"][0]["gain_ratio"]["num_jobs"] = num_pairs
    (folder / VERIFICATION_FILE).write_text(json.dumps(found))
    said = f"1.60, from {num_pairs} pairs ({2 * num_pairs} cold jobs), interleaved."
    for path in export(folder, tmp_path / "out", allow_unproven=True).files:
        assert path.name == DIFF_FILE or said in path.read_text(), path


def test_the_head_says_that_the_sweeps_trials_replayed_their_rollout(tmp_path: Path) -> None:
    trials = [
        dataclasses.replace(
            record, metrics={UPDATE_ONLY: record.metrics[OBJECTIVE], LIMIT.metric: 0.1}
        )
        for record in TRIALS
    ]
    folder = make_folder(tmp_path, trials=trials, script=SCRIPT, fidelity="update")
    export(folder, folder / "out", allow_unproven=False)
    for name in (BEST_FILE, OVERRIDES_FILE, SCRIPT_FILE):
        text = (folder / "out" / name).read_text()
        assert f"PROVEN: 1.50 times the base job in {OBJECTIVE}, 95 % interval" in text
        assert (
            "In the sweep, one job each (update-only: rollout replayed): base job 100 update-only "
            "tokens/s/GPU, trial 3 150 update-only tokens/s/GPU." in text
        )
    claim = read_claim((folder / "out" / BEST_FILE).read_text())
    assert claim is not None and claim["objective"] == OBJECTIVE


def test_the_overrides_are_the_same_job(proven: Path) -> None:
    lines = (proven / OVERRIDES_FILE).read_text().splitlines()
    overrides = [line for line in lines if not line.startswith("#")]
    assert overrides == [*BASE, *RESOURCES, *TRIALS[3].overrides]


def test_the_launch_script_is_the_teams_own_with_the_tuned_settings(proven: Path) -> None:
    script = parse_launch_script((proven / SCRIPT_FILE).read_text(), SCRIPT_FILE)
    assert f"{KEY}=8" in script.overrides
    assert len(script.overrides) == len(BASE) + len(SCORING_KEYS)
    assert "MB=4\n" in script.text
    assert os.access(proven / SCRIPT_FILE, os.X_OK)


def test_the_diff_shows_what_changes(proven: Path) -> None:
    diff = (proven / DIFF_FILE).read_text()
    assert diff.startswith(f"--- launch.sh\n+++ {SCRIPT_FILE}\n")
    assert f"-    {KEY}=$MB \\\n+    {KEY}=8 \\\n" in diff
    removed = [line for line in diff.splitlines() if line.startswith("-")]
    assert len(removed) == 3


@pytest.mark.parametrize(
    ("decision", "message"),
    [
        (None, "never compared with the base job again"),
        (Decision.NOT_PROVEN, "says: not proven"),
        (Decision.WORSE, "says: worse"),
    ],
)
def test_what_is_not_proven_is_refused(
    decision: Decision | None, message: str, tmp_path: Path
) -> None:
    folder = make_folder(tmp_path / "sweep", decision=decision)
    with pytest.raises(BadInputError, match=f"Trial 3 .* is not proven: .*{message}.*verify"):
        export(folder, tmp_path / "out", allow_unproven=False)
    assert not (tmp_path / "out").exists()


def test_what_is_not_feasible_is_exported_on_request_and_every_file_says_so(tmp_path: Path) -> None:
    only = [trial(0, 4, 100.0, exposed=0.4), trial(1, 16, 300.0, exposed=0.3)]
    folder = make_folder(tmp_path / "sweep", trials=only, decision=None)
    exported = export(folder, tmp_path / "out", allow_unproven=True)
    for path in exported.files:
        text = path.read_text()
        assert "UNPROVEN, exported with --allow-unproven" in text, path
        assert "Trial 1 is not feasible: it breaks a constraint." in text, path
    claim = read_claim((tmp_path / "out" / BEST_FILE).read_text())
    assert claim is not None and not claim["proven"] and claim["gain_ratio"] is None


@pytest.mark.parametrize(
    ("trials", "message"),
    [
        ([], "no trial has finished"),
        ([trial(0, 4, 100.0), trial(1, 8, 50.0)], "the base job's own settings were the best"),
    ],
)
def test_without_a_better_setting_there_is_nothing_to_export(
    trials: list[TrialRecord], message: str, tmp_path: Path
) -> None:
    folder = make_folder(tmp_path / "sweep", trials=trials, decision=None)
    with pytest.raises(BadInputError, match=message):
        export(folder, tmp_path / "out", allow_unproven=True)


def test_another_trial_is_exported_when_it_is_named(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "sweep")
    with pytest.raises(BadInputError, match="Trial 1 .* verification compared other settings"):
        export(folder, tmp_path / "out", allow_unproven=False, number=1)
    export(folder, tmp_path / "out", allow_unproven=True, number=1)
    text = (tmp_path / "out" / OVERRIDES_FILE).read_text()
    assert f"{KEY}=1" in text and "UNPROVEN" in text
    with pytest.raises(BadInputError, match="trial 0 ran the base job's own settings"):
        export(folder, tmp_path / "out", allow_unproven=True, number=0)


def test_a_base_job_that_deletes_a_key_gets_script_and_overrides_only(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "sweep", base=[*BASE, "~trainer.nnodes"])
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / BEST_FILE).write_text("of an earlier export")
    exported = export(folder, tmp_path / "out", allow_unproven=False)
    assert [path.name for path in exported.files] == [OVERRIDES_FILE, SCRIPT_FILE, DIFF_FILE]
    assert exported.refused is not None and "~trainer.nnodes" in exported.refused
    assert not (tmp_path / "out" / BEST_FILE).exists()
    assert "~trainer.nnodes" in parse_launch_script(
        (tmp_path / "out" / SCRIPT_FILE).read_text(), "x"
    ).overrides  # fmt: skip


def test_a_script_that_would_start_another_job_is_not_written(tmp_path: Path) -> None:
    later = f"'++actor_rollout_ref.actor={{{MICRO}:4}}'"
    script = f"python3 -m verl.trainer.main_ppo {KEY}=4 {later}"
    folder = make_folder(tmp_path / "sweep", script=script)
    with pytest.raises(SweepError, match="would start another job: it differs in .*" + MICRO):
        export(folder, tmp_path / "out", allow_unproven=False)


def test_a_sweep_without_its_base_job_says_what_to_do(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "sweep")
    (folder / BASE_JOB_FILE).unlink()
    with pytest.raises(SweepError, match="base_job.json cannot be read.*Run the sweep again"):
        export(folder, tmp_path / "out", allow_unproven=False)


def test_a_secret_of_the_base_job_is_in_no_file_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_verysecret")
    base = [*BASE, "+ray_kwargs.ray_init.runtime_env.env_vars.HF_TOKEN=hf_verysecret"]
    folder = make_folder(tmp_path / "sweep", base=base)
    with pytest.raises(BadInputError, match="HF_TOKEN holds a secret"):
        export(folder, folder, allow_unproven=False)
    for path in folder.iterdir():
        assert "hf_verysecret" not in path.read_text(), path


def test_a_knob_that_was_measured_by_itself_says_what_it_did(tmp_path: Path) -> None:
    alone = dataclasses.replace(trial(4, 4, 120.0), setting={MICRO: 8, SCORING: 4})
    folder = make_folder(tmp_path / "sweep", trials=[*TRIALS, alone])
    export(folder, folder, allow_unproven=False)
    text = (folder / BEST_FILE).read_text()
    assert f"{MICRO} was 4, is 8; by itself 1.20 times in {OBJECTIVE} (trial 4 against 0" in text


def test_the_command_names_the_files_and_how_to_run_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import argparse

    folder = make_folder(tmp_path / "sweep")
    parser = argparse.ArgumentParser()
    export_command.add_arguments(parser)
    assert export_command.run(parser.parse_args([str(folder)])) is ExitCode.DONE
    printed = capsys.readouterr().out
    assert str(folder / BEST_FILE) in printed
    assert f"--config-path {folder} --config-name best" in printed
    # The report in the folder offers what was just exported.
    assert "Run it in production" in (folder / HTML_FILE).read_text()
