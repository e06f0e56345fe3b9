"""The Optuna study of a sweep: what was asked, what it is told, and how both survive a kill.

Runs in the driver. The records of the sweep are the truth; the study is what samplers learn from,
and is brought into line with the records at every start. It lives in a journal file in the sweep's
folder, or in any database that Optuna reads. Constraints reach samplers as constraints: an
objective never carries a penalty. A trial's number here is its number everywhere. Imports its
sibling ``sampler``.
"""

import fcntl
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import optuna
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, create_trial
from optuna.trial import TrialState as StudyState

from autotune.errors import SweepError
from autotune.models.evidence import Evidence
from autotune.models.promise import Goal
from autotune.objective import (
    BASELINE,
    TrialRecord,
    is_better,
    is_maximised,
)
from autotune.sampler import (
    CAUSE,
    METRICS_OF_TRIAL,
    SETTING,
    STATE,
    FeasibleSampler,
    SearchSpace,
    Setting,
    ask_parameters,
)

COMPLETED = "completed"
"""The study's last constraint: -1 where the objective was measured, 1 where the trial failed."""

_IMPUTED = "objective_imputed"
_ATTEMPTS, _LOSSES, _REPEATS = "attempts", "losses", "repeats"


class Records(Protocol):
    """What the search asks of :class:`autotune.store.SweepStore`."""

    def read_trials(self) -> list[TrialRecord]: ...

    def append_trial(self, record: TrialRecord) -> None: ...

    def study_journal(self) -> Path: ...

    def study_name(self) -> str: ...


class SweepStudy:
    """The study of one sweep, in line with its records.

    Args:
        space: The valid settings.
        sampler: Chooses what is asked.
        goal: Objectives and limits, in the order of the sweep file.
        records: The sweep's store, locked.
        storage: Database URL; None for the journal in the sweep's folder.

    Raises:
        SweepError: Records and study do not belong together, or the storage cannot be read.
    """

    def __init__(
        self,
        space: SearchSpace,
        sampler: FeasibleSampler,
        goal: Goal,
        records: Records,
        storage: str | None,
    ) -> None:
        self._space, self._goal = space, goal
        self.finished: dict[int, TrialRecord] = {}
        """Records by number."""
        self.optuna = open_study(records, goal, sampler, storage)
        """The study itself, for reading."""

    def reconcile(self, records: Sequence[TrialRecord], first: Sequence[Setting]) -> list[int]:
        """Bring the study into line with the records; return the trials that were cut off.

        Args:
            records: All of the sweep.
            first: Settings that a new study begins with, the baseline among them.
        """
        by_number = {record.number: record for record in records}
        self._replay_lost_journal(by_number)
        have = len(self._all())
        for setting in first[have:] if have < len(first) and not by_number else ():
            self.enqueue(setting)
        unfinished = [
            trial.number
            for trial in self._all()
            if self._is_cut_off(trial, by_number.get(trial.number))
        ]
        return unfinished

    def ask(self) -> Trial:
        """Return the next trial; without parameters, see :meth:`start`."""
        return self.optuna.ask()

    def start(self, trial: Trial) -> int:
        """Give a trial its parameters; return how many attempts it had before."""
        ask_parameters(trial, self._space)
        attempt = int(trial.user_attrs.get(_ATTEMPTS, 0))
        trial.set_user_attr(_ATTEMPTS, attempt + 1)
        return attempt

    def enqueue(self, setting: Setting, *, repeats: bool = False) -> None:
        """Have a setting asked before what the sampler wants.

        Args:
            setting: A whole, canonical setting.
            repeats: It was measured and is measured again.
        """
        attributes: dict[str, Any] = {SETTING: setting}
        if repeats:
            attributes[_REPEATS] = True
        self.optuna.enqueue_trial(setting, user_attrs=attributes)

    def is_waiting(self) -> bool:
        """Say whether an enqueued setting was not asked yet."""
        return bool(self.optuna.get_trials(deepcopy=False, states=(StudyState.WAITING,)))

    def num_repeats(self) -> int:
        """Return how many trials repeat a setting; those that were lost do not count."""
        return sum(
            _REPEATS in trial.user_attrs and trial.state is not StudyState.FAIL
            for trial in self._all()
        )

    def repeats(self, number: int) -> bool:
        """Say whether a trial measures a setting again."""
        return _REPEATS in self.frozen(number).user_attrs

    def num_asked(self, setting: Setting) -> int:
        """Return how often a setting was asked; trials that were lost do not count."""
        key = self._space.key(setting)
        return sum(
            self._space.key(trial.user_attrs[SETTING]) == key
            for trial in self._all()
            if SETTING in trial.user_attrs and trial.state is not StudyState.FAIL
        )

    def tell(self, record: TrialRecord) -> None:
        """Tell the study how a trial ended; the caller has stored the record.

        Every trial gets all constraints in one order: those of the sweep in file order, then
        :data:`COMPLETED`. A constraint that was not measured is 0, neither kept with room nor
        broken. A failed trial gets the worst objective measured so far, marked as imputed. Of a
        trial that a recovery rule changed, the study hears what the setting as asked came to. A
        trial that was told already is left as it is.
        """
        self.finished[record.number] = record
        if self.frozen(record.number).state.is_finished():
            return
        trial = self.trial(record.number)
        if record.recovery is not None:
            trial.set_user_attr("recovery", record.recovery.rule)
        record = record.as_asked()
        evidence = Evidence.of(record, self._goal.metrics)
        trial.set_user_attr(STATE, record.state.value)
        trial.set_user_attr(CAUSE, record.cause)
        trial.set_user_attr(METRICS_OF_TRIAL, evidence.metrics)
        if not record.state.is_setting_fault:
            self.optuna.tell(trial, state=StudyState.FAIL)
            return
        values = [evidence.metrics.get(name) for name in self._goal.objectives]
        self._set_constraints(trial, record, is_complete=None not in values)
        if None in values:
            trial.set_user_attr(_IMPUTED, True)
        self.optuna.tell(
            trial,
            [
                self._worst(name) if value is None else value
                for name, value in zip(self._goal.objectives, values)
            ],
        )

    # Trials by number.

    def frozen(self, number: int) -> FrozenTrial:
        """Return a trial, for reading."""
        return self._all()[number]

    def trial(self, number: int) -> Trial:
        """Return a trial, for writing."""
        return Trial(self.optuna, self.frozen(number)._trial_id)

    def setting(self, number: int) -> Setting:
        """Return the setting of a trial that was asked."""
        return dict(self.frozen(number).user_attrs[SETTING])

    def add_loss(self, number: int, cause: str) -> None:
        """Note that a trial's job was lost through no fault of its setting."""
        trial = self.trial(number)
        trial.set_user_attr(_LOSSES, [*trial.user_attrs.get(_LOSSES, []), cause])

    def num_losses(self, number: int) -> int:
        """Return how many jobs of a trial were lost, over all runs of the sweep."""
        return len(self.frozen(number).user_attrs.get(_LOSSES, []))

    def _all(self) -> list[FrozenTrial]:
        return self.optuna.get_trials(deepcopy=False)

    # What is told.

    def _set_constraints(self, trial: Trial, record: TrialRecord, *, is_complete: bool) -> None:
        values = {name: record.violations.get(name) for name in self._goal.limits}
        values[COMPLETED] = -1.0 if is_complete else 1.0
        kept = trial.constraints
        for name, value in values.items():
            if name not in kept:
                trial.set_constraint(name, 0.0 if value is None else value)

    def _worst(self, objective: str) -> float:
        worst: float | None = None
        for record in self.finished.values():
            value = Evidence.of(record, [objective]).metrics.get(objective)
            if value is not None and (worst is None or is_better(worst, value, objective)):
                worst = value
        return 0.0 if worst is None else worst

    # Starting.

    def _is_cut_off(self, trial: FrozenTrial, record: TrialRecord | None) -> bool:
        """Tell the study what it missed of a trial; say whether the trial has to be run again."""
        if record is not None:
            self._check_same(trial, record)
        is_lost_baseline = (
            trial.number == BASELINE and record is not None and not record.state.is_setting_fault
        )
        if record is not None and not is_lost_baseline:
            if trial.state is StudyState.WAITING:
                ask_parameters(self.optuna.ask(), self._space)
            self.tell(record)
        elif trial.state is StudyState.COMPLETE:
            raise SweepError(
                f"Trial {trial.number} finished, but trials.jsonl holds no record of it.",
                "Restore the file from a copy, or start a new sweep under another name.",
            )
        return trial.state is StudyState.RUNNING and (record is None or is_lost_baseline)

    def _replay_lost_journal(self, records: Mapping[int, TrialRecord]) -> None:
        """Make the study's trials up to the last record where the storage lacks them."""
        seen = [self._space.key(record.setting) for record in records.values()]
        for number in range(len(self._all()), max(records, default=-1) + 1):
            if number in records:
                setting = records[number].setting
                first = seen.index(self._space.key(setting))
                self.enqueue(setting, repeats=first < list(records).index(number))
            else:
                self.optuna.add_trial(create_trial(state=StudyState.FAIL))

    def _check_same(self, trial: FrozenTrial, record: TrialRecord) -> None:
        asked = trial.user_attrs.get(SETTING)
        if asked is None or self._space.key(asked) != self._space.key(record.setting):
            raise SweepError(
                f"Trial {record.number} of trials.jsonl ran with {record.setting}, but the study "
                f"asked for {asked}.",
                "The two are of different sweeps: restore them, or start a new sweep.",
            )


class _KernelLock(JournalFileOpenLock):
    """Lock of the journal that the kernel frees when its holder dies.

    Optuna's own are files: one left by a killed driver makes the next one wait for 30 s.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path
        self._fd = -1

    def acquire(self) -> bool:
        self._fd = os.open(self._path, os.O_RDONLY)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        return True

    def release(self) -> None:
        os.close(self._fd)


def open_study(
    records: Records, goal: Goal, sampler: FeasibleSampler, storage: str | None
) -> Study:
    """Open or create the study of a sweep.

    Args:
        records: The sweep's store: its journal, and the study's name in a database.
        goal: Its objectives, each optimised in its own direction.
        sampler: The study's sampler.
        storage: Database URL; None for the journal.

    Raises:
        SweepError: The journal has a broken line, or the database cannot be reached.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    backend: BaseStorage | str | None = storage
    journal = records.study_journal() if storage is None else None
    try:
        if journal is not None:
            backend = JournalStorage(JournalFileBackend(str(journal), _KernelLock(journal)))
        return optuna.create_study(
            storage=backend,
            study_name="sweep" if storage is None else records.study_name(),
            sampler=sampler,
            directions=[
                "maximize" if is_maximised(name) else "minimize" for name in goal.objectives
            ],
            load_if_exists=True,
        )
    except (ValueError, KeyError) as error:
        raise SweepError(
            f"{storage or journal} cannot be read: {error}.",
            "Remove it: the study is made again from the sweep's records.",
        ) from error
    except Exception as error:
        if storage is None:
            raise
        raise SweepError(
            f"search.storage is {storage!r}, which cannot be reached: {error}.",
            "Check the URL and that its driver is installed, e.g. verl-autotune[postgres].",
        ) from error
