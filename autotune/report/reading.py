"""What a sweep's folder says, running or finished: everything that a report is made from.

Runs in whatever process reports (driver, wandb writer, a shell on another machine). Reads only, and
takes no lock: lines count once they are whole, see :mod:`autotune.store`. Needs neither verl nor
the base job's model and data. A file that other parts write at their own time (verification,
calibration) is None until it is there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from autotune.claim import read_claim
from autotune.config import load_config
from autotune.errors import BadInputError
from autotune.knobs import KnobValue
from autotune.models.calibration_record import CalibrationRecord, read_record
from autotune.objective import StepRecord, TrialRecord
from autotune.settings import SweepConfig
from autotune.store import (
    BEST_FILE,
    CALIBRATION_FILE,
    CONFIG_FILE,
    LOG_FOLDER,
    VERIFICATION_FILE,
    VERSIONS_FILE,
    SweepStore,
)
from autotune.verification import Verification, VerifyJob, read_verification


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepData:
    """One sweep at one moment."""

    folder: Path
    config: SweepConfig
    versions: Mapping[str, str]
    """Package -> version that ran last."""
    trials: Sequence[TrialRecord]
    """Finished trials by number."""
    steps: Mapping[int, Sequence[StepRecord]]
    """Trial -> all its steps, all attempts, in the order in which they ran."""
    is_running: bool
    """Whether a process on this machine holds the sweep's lock."""
    exported: int | None
    """The trial whose setting ``best.yaml`` holds; None: there is none that says so."""
    calibration: CalibrationRecord | None
    """What was measured on the cluster's links and devices."""
    verification: Verification | None
    """What cold, interleaved jobs of the baseline and the best settings found."""
    verify_jobs: Sequence[VerifyJob]
    """Cold jobs of all verifications of the folder, in the order in which they ran."""

    @property
    def baseline(self) -> TrialRecord | None:
        """Trial 0; None before it has ended."""
        return next((record for record in self.trials if record.number == 0), None)

    @property
    def baseline_setting(self) -> Mapping[str, KnobValue]:
        """The base job's own setting; empty before trial 0 has ended."""
        return self.baseline.setting if self.baseline is not None else {}

    def trial(self, number: int) -> TrialRecord:
        """Return one trial.

        Raises:
            BadInputError: No trial of that number has ended.
        """
        for record in self.trials:
            if record.number == number:
                return record
        known = f"Finished: {_ranges([record.number for record in self.trials])}."
        raise BadInputError(
            f"trial {number} of {self.folder}: no such finished trial.",
            known if self.trials else "No trial has finished yet.",
        )

    def last_attempt(self, number: int) -> list[StepRecord]:
        """Return the steps of a trial's last job, the one that its metrics are about."""
        steps = self.steps.get(number, ())
        last = max((step.attempt for step in steps), default=0)
        return [step for step in steps if step.attempt == last]

    def log_path(self, number: int) -> Path | None:
        """Return what the trial's job printed; None when it is not there.

        A job that is restarted in place for the next trial goes on in the file of the trial that
        launched it: the newest file at or before the trial's number.
        """
        logs = sorted((self.folder / LOG_FOLDER).glob("trial_*.log"))
        before = [path for path in logs if int(path.stem.removeprefix("trial_")) <= number]
        return before[-1] if before else None


def is_sweep(folder: Path) -> bool:
    """Say whether a folder is a sweep's."""
    return (folder / CONFIG_FILE).is_file()


def read_sweep(folder: Path | str) -> SweepData:
    """Read a sweep's folder.

    Raises:
        BadInputError: It is not the folder of a sweep.
        SweepError: A record cannot be read.
    """
    path = Path(folder).resolve()
    if not is_sweep(path):
        raise BadInputError(f"{folder} is not the folder of a sweep.", _sweeps_nearby(path))
    store = SweepStore(path)
    versions = path / VERSIONS_FILE
    calibration = path / CALIBRATION_FILE
    return SweepData(
        folder=path,
        config=load_config(path / CONFIG_FILE),
        versions=_of_last_run(versions.read_text()) if versions.exists() else {},
        trials=store.read_trials(),
        steps=store.read_all_steps(),
        is_running=store.is_locked(),
        exported=_exported(path / BEST_FILE),
        calibration=read_record(calibration) if calibration.exists() else None,
        verification=read_verification(path / VERIFICATION_FILE),
        verify_jobs=store.read_verify_jobs(),
    )


def find_sweeps(folder: Path) -> list[Path]:
    """Return the sweeps in a folder: itself, or those directly below it, by name."""
    if is_sweep(folder):
        return [folder]
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if is_sweep(path))


def _of_last_run(runs: str) -> dict[str, str]:
    versions: dict[str, str] = yaml.safe_load(runs)[-1]["versions"]
    return versions


def _exported(path: Path) -> int | None:
    claim = read_claim(path.read_text(encoding="utf-8")) if path.exists() else None
    return None if claim is None else int(claim["trial"])


def _sweeps_nearby(path: Path) -> str:
    found = find_sweeps(path) or find_sweeps(path.parent) or find_sweeps(path.parent / "sweeps")
    if not found:
        return f"It must hold {CONFIG_FILE}, as `autotune sweep` writes it."
    return f"Sweeps near it: {', '.join(str(sweep) for sweep in found[:5])}."


def _ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers with their runs drawn together: 0-3, 7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][-1:] = [number] if len(runs[-1]) > 1 else [runs[-1][0], number]
        else:
            runs.append([number])
    return ", ".join("-".join(str(number) for number in run) for run in runs)
