"""The sweep's folder: what is written is read back, whatever killed the writer."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_disk import disk_of

from autotune.errors import SweepError, WriteError
from autotune.objective import StepKind, StepRecord, TrialRecord, TrialState
from autotune.store import SweepStore, write_atomic


def trial(number: int, **changes: Any) -> TrialRecord:
    values: dict[str, Any] = {
        "number": number,
        "state": TrialState.CRASH,
        "params": {"ppo_micro_batch_size_per_gpu": 4},
        "setting": {"ppo_micro_batch_size_per_gpu": 4},
        "overrides": ["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4"],
        "metrics": {"startup_s": 61.5, "step_s": None},
        "absent": {"step_s": "no measured step finished"},
        "violations": {"kl_std": None},
        "feasible": False,
        "cause": "the job's process died: exit code 1",
        "started_at": "2026-01-01T00:00:00+00:00",
        "ended_at": "2026-01-01T00:01:00+00:00",
        "retries": 0,
    }
    return TrialRecord(**{**values, **changes})


def step(number: int, index: int, **changes: Any) -> StepRecord:
    values: dict[str, Any] = {
        "number": number,
        "attempt": 0,
        "step": index,
        "kind": StepKind.MEASURED,
        "metrics": {"perf/throughput": 12.5, "autotune/kl_per_rank": [1e-9, 2e-9]},
    }
    return StepRecord(**{**values, **changes})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SweepStore]:
    store = SweepStore(tmp_path / "sweep")
    with store.locked():
        yield store


def test_trials_are_read_back_as_they_were_written(store: SweepStore) -> None:
    store.append_trial(trial(1))
    store.append_trial(trial(0))
    assert store.read_trials() == [trial(0), trial(1)]


def test_the_last_line_of_a_trial_counts(store: SweepStore) -> None:
    store.append_trial(trial(0, state=TrialState.INFRASTRUCTURE))
    store.append_trial(trial(0))
    assert store.read_trials() == [trial(0)]


def test_steps_are_read_back_for_their_trial(store: SweepStore) -> None:
    for record in (step(0, 1), step(1, 1), step(0, 2)):
        store.append_step(record)
    assert store.read_steps(0) == [step(0, 1), step(0, 2)]


def test_a_sweep_that_never_ran_has_no_records(tmp_path: Path) -> None:
    assert SweepStore(tmp_path / "none").read_trials() == []


def test_every_line_bears_its_schema_version(store: SweepStore) -> None:
    store.append_trial(trial(0))
    store.append_step(step(0, 1))
    lines = store.trials_path.read_text() + store.steps_path.read_text()
    assert [json.loads(line)["schema_version"] for line in lines.splitlines()] == [1, 1]


def test_no_line_holds_a_nan(store: SweepStore) -> None:
    store.append_step(step(0, 1, metrics={"actor/grad_norm": float("nan")}))
    assert "NaN" not in store.steps_path.read_text()
    [read] = store.read_steps(0)
    assert read.metrics == {"actor/grad_norm": None}
    assert read.absent == {"actor/grad_norm": "not a finite number (nan)"}


def test_a_torn_last_line_is_ignored_and_cut_off_by_the_next_append(store: SweepStore) -> None:
    store.append_trial(trial(0))
    whole = store.trials_path.read_bytes()
    store.trials_path.write_bytes(whole + whole[:40])
    assert store.read_trials() == [trial(0)]
    store.append_trial(trial(1))
    assert store.read_trials() == [trial(0), trial(1)]


def test_a_file_of_one_torn_line_holds_nothing(store: SweepStore) -> None:
    store.trials_path.write_bytes(b'{"schema_version": 1, "num')
    assert store.read_trials() == []
    store.append_trial(trial(0))
    assert store.read_trials() == [trial(0)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{half a line", "Expecting property name"),
        ("[1]", "it is not a JSON object"),
        ('{"schema_version": 9}', "schema_version is 9, not 1"),
        ('{"schema_version": 1, "number": 0}', "state"),
    ],
)
def test_another_broken_line_is_named(store: SweepStore, line: str, reason: str) -> None:
    store.append_trial(trial(0))
    with store.trials_path.open("a") as file:
        file.write(line + "\n")
    store.append_trial(trial(1))
    with pytest.raises(SweepError, match=rf"trials\.jsonl, line 2, cannot be read: .*{reason}"):
        store.read_trials()


def test_a_second_driver_is_told_who_runs_the_sweep(store: SweepStore) -> None:
    with pytest.raises(SweepError, match=f"is being run by process {os.getpid()} on "):
        with SweepStore(store.folder).locked():
            pass


def test_the_lock_is_free_after_its_holder(tmp_path: Path) -> None:
    for _ in range(2):
        with SweepStore(tmp_path).locked():
            pass


def test_the_lock_is_free_after_its_holder_was_killed(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import sys, time
        from pathlib import Path
        from autotune.store import SweepStore
        with SweepStore(Path(sys.argv[1])).locked():
            print("locked", flush=True)
            time.sleep(60)
        """
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None and holder.stdout.readline() == "locked\n"
    with pytest.raises(SweepError, match=f"process {holder.pid} "):
        with SweepStore(tmp_path).locked():
            pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with SweepStore(tmp_path).locked():
        pass


def test_records_survive_a_writer_killed_at_any_moment(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from autotune.objective import StepKind, StepRecord
        from autotune.store import SweepStore
        store = SweepStore(Path(sys.argv[1]))
        with store.locked():
            for index in range(1, 1_000_000):
                store.append_step(
                    StepRecord(
                        number=0, attempt=0, step=index, kind=StepKind.MEASURED,
                        metrics={"x": [0.5] * 5_000},
                    )
                )
                print(index, flush=True)
        """
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    for _ in range(5):
        writer.stdout.readline()
    writer.kill()
    acknowledged = 5 + len(writer.stdout.read().splitlines())
    store = SweepStore(tmp_path)
    read = store.read_steps(0)
    assert [record.step for record in read] == list(range(1, len(read) + 1))
    assert len(read) >= acknowledged


def test_write_atomic_replaces_the_whole_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "best.yaml"
    write_atomic(path, "a long first text\n")
    write_atomic(path, "short\n")
    assert path.read_text() == "short\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "taken"
    (path / "inside").mkdir(parents=True)
    with pytest.raises(WriteError, match="taken could not be written: Is a directory"):
        write_atomic(path, "text")
    assert [entry.name for entry in tmp_path.iterdir()] == ["taken"]


def test_a_record_that_does_not_fit_on_the_disk_leaves_the_others(store: SweepStore) -> None:
    store.append_trial(trial(0))
    size = store.trials_path.stat().st_size
    with disk_of(size + 20), pytest.raises(WriteError, match="File too large"):
        store.append_trial(trial(1))
    assert store.trials_path.stat().st_size == size + 20
    assert store.read_trials() == [trial(0)]
    store.append_trial(trial(1))
    assert store.read_trials() == [trial(0), trial(1)]


def test_a_file_that_does_not_fit_on_the_disk_is_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "best.yaml"
    write_atomic(path, "old\n")
    with disk_of(10), pytest.raises(WriteError, match="best.yaml could not be written"):
        write_atomic(path, "a new text that is longer\n")
    assert path.read_text() == "old\n"
    assert list(tmp_path.iterdir()) == [path]


def test_records_hold_no_secret(store: SweepStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", 'quo"ted-key')
    store.append_trial(trial(0, cause='401: key quo"ted-key refused'))
    [record] = store.read_trials()
    assert record.cause == "401: key <WANDB_API_KEY removed> refused"
    store.write("note.txt", 'quo"ted-key')
    assert (store.folder / "note.txt").read_text() == "<WANDB_API_KEY removed>"


def test_a_torn_line_of_the_study_journal_is_cut_off(store: SweepStore) -> None:
    (store.folder / "study.journal").write_bytes(b'{"op_code":0}\n{"op_co')
    assert store.study_journal().read_bytes() == b'{"op_code":0}\n'


def test_a_reader_sees_whether_the_sweep_is_being_run(tmp_path: Path) -> None:
    store, reader = SweepStore(tmp_path), SweepStore(tmp_path)
    assert not reader.is_locked()
    with store.locked():
        assert reader.is_locked()
    assert not reader.is_locked()


def test_all_steps_are_read_by_trial(store: SweepStore) -> None:
    for record in (step(1, 1), step(0, 1), step(1, 2)):
        store.append_step(record)
    assert store.read_all_steps() == {1: [step(1, 1), step(1, 2)], 0: [step(0, 1)]}
