"""Which setting to try next: a Ray Tune searcher over an Optuna study that survives any kill.

Runs in the driver, which holds the sweep's lock. The records of the sweep are the truth; the study
(``study.journal``) is what the sampler learns from, and is brought into line with the records at
every start. A record is on disk before the study hears of it, so a kill between the two loses
nothing. Constraints reach the sampler as constraints: the objective never carries a penalty. Does
not start trials, and does not decide how a trial ended. Imports its sibling ``sampler``.
"""

import dataclasses
import fcntl
import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import optuna
from optuna.samplers import BaseSampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, create_trial
from optuna.trial import TrialState as StudyState
from ray.tune.search import Searcher

from autotune.errors import SweepError
from autotune.objective import (
    BASELINE,
    RECORD,
    Constraint,
    TrialRecord,
    TrialState,
    is_better,
    is_maximised,
    timestamp,
)
from autotune.sampler import SETTING, FeasibleSampler, SearchSpace, Setting, ask_parameters
from autotune.settings import SearchConfig
from autotune.trial_metrics import against_baseline

logger = logging.getLogger(__name__)

COMPLETED = "completed"
"""The study's last constraint: -1 where the objective was measured, 1 where the trial failed."""
MAX_GIVEN_UP = 3
"""Trials lost in a row, retries included, before the cluster is held to be at fault."""

_ATTEMPTS, _LOSSES = "attempts", "losses"


class Records(Protocol):
    """What the search asks of :class:`autotune.store.SweepStore`."""

    def read_trials(self) -> list[TrialRecord]: ...

    def append_trial(self, record: TrialRecord) -> None: ...

    def study_journal(self) -> Path: ...


@dataclass(frozen=True, slots=True)
class _Live:
    """A Tune trial that runs."""

    number: int
    started_at: str


class SweepSearcher(Searcher):
    """Suggests the baseline, then what the sampler wants, until enough trials have finished.

    A suggestion is ``{"number", "attempt", "setting", "params", "overrides"}``. A trial ends with
    its record under :data:`~autotune.objective.RECORD` in its last result; the searcher stores it
    and tells the study. A trial that ends without one, with an error, or as INFRASTRUCTURE was
    lost: its setting is suggested again under the same number, and given up after more than
    ``max_retries`` losses since this driver started. Trials given up do not count. Not safe for
    threads; Tune uses one.

    Args:
        space: The valid settings.
        settings: The sweep's search section.
        objective: Metric to optimise, in its own direction.
        constraints: Limits, in the order of the sweep file.
        records: The sweep's store, locked.
        max_retries: Losses of one trial that are made good; one more, and it is given up.

    Raises:
        SweepError: Records and study do not belong together, or the journal cannot be read.
    """

    def __init__(
        self,
        space: SearchSpace,
        settings: SearchConfig,
        *,
        objective: str,
        constraints: Sequence[Constraint],
        records: Records,
        max_retries: int,
    ) -> None:
        super().__init__()
        self.failure: str | None = None
        """Why the search ended early: the baseline or several trials in a row were lost."""
        self._space = space
        self._settings = settings
        self._objective = objective
        self._constraints = tuple(constraints)
        self._records = records
        self._max_retries = max_retries
        self._sampler = FeasibleSampler(space, settings)
        self._study = open_study(records.study_journal(), objective, self._sampler)
        self._finished: dict[int, TrialRecord] = {}
        self._pending: list[int] = []
        self._live: dict[str, _Live] = {}
        self._lost: dict[int, int] = {}
        self._given_up_in_a_row = 0
        self._is_closed = False
        self._reconcile(records.read_trials())

    @property
    def study(self) -> Study:
        """The Optuna study, for reading."""
        return self._study

    @property
    def num_finished(self) -> int:
        """Trials that count: those whose outcome is evidence about their setting."""
        return sum(record.state.is_setting_fault for record in self._finished.values())

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to try: the budget is used up, or the space."""
        return not self._live and not self._wants_more()

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:  # type: ignore[override]
        """Return the next setting, None to be asked again later, or FINISHED."""
        if self._is_closed or self.failure is not None:
            return None if self._live else Searcher.FINISHED
        if len(self._live) >= self._settings.max_concurrent:
            return None
        if self._pending:
            trial = self._trial(self._pending.pop(0))
        elif self._wants_more():
            trial = self._study.ask()
        else:
            return None if self._live else Searcher.FINISHED
        return self._start(trial_id, trial)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        live = self._live.pop(trial_id, None)
        if live is None:
            logger.warning("Ray Tune reports a trial that was not suggested: %s", trial_id)
            return
        text = None if error or result is None else result.get(RECORD)
        record = TrialRecord.from_dict(json.loads(text)) if text is not None else None
        assert record is None or record.number == live.number, record
        try:
            self._end(live, record)
        except OSError as problem:
            self.failure = f"trial {live.number} could not be written to disk: {problem}"
            logger.error("%s", self.failure)

    def tell(self, record: TrialRecord) -> None:
        """Tell the study how a trial ended; the caller has stored the record.

        Every trial gets all constraints in one order: those of the sweep in file order, then
        :data:`COMPLETED`. A constraint that was not measured is 0, neither kept with room nor
        broken. A failed trial gets the worst objective measured so far, marked as imputed. A trial
        that was told already is left as it is.
        """
        self._finished[record.number] = record
        if self._frozen(record.number).state.is_finished():
            return
        trial = self._trial(record.number)
        trial.set_user_attr("state", record.state.value)
        trial.set_user_attr("cause", record.cause)
        if not record.state.is_setting_fault:
            self._study.tell(trial, state=StudyState.FAIL)
            return
        measured = _measured(record, self._objective)
        self._set_constraints(trial, record, is_complete=measured is not None)
        if measured is None:
            trial.set_user_attr("objective_imputed", True)
        self._study.tell(trial, self._worst() if measured is None else measured)

    def close(self) -> None:
        """Suggest nothing more; trials that end without a record from now on were interrupted.

        They stay open in the study, and the next run of the sweep continues them.
        """
        self._is_closed = True

    def save(self, checkpoint_path: str) -> None:
        """Write which Tune trial runs which of ours; all else is in the study and the records."""
        live = {trial_id: dataclasses.asdict(live) for trial_id, live in self._live.items()}
        Path(checkpoint_path).write_text(json.dumps(live))

    def restore(self, checkpoint_path: str) -> None:
        """Take up the trials that Tune goes on with by itself."""
        for trial_id, live in json.loads(Path(checkpoint_path).read_text()).items():
            if live["number"] in self._pending:
                self._pending.remove(live["number"])
                self._live[trial_id] = _Live(**live)

    # Suggesting.

    def _wants_more(self) -> bool:
        if self.num_finished + len(self._live) >= self._settings.num_trials:
            return False
        waiting = self._study.get_trials(deepcopy=False, states=(StudyState.WAITING,))
        return bool(waiting) or not self._sampler.is_exhausted(self._study)

    def _start(self, trial_id: str, trial: Trial) -> dict[str, Any]:
        ask_parameters(trial, self._space)
        attempt = trial.user_attrs.get(_ATTEMPTS, 0)
        trial.set_user_attr(_ATTEMPTS, attempt + 1)
        self._live[trial_id] = _Live(trial.number, timestamp())
        setting = self._setting(trial.number)
        return {
            "number": trial.number,
            "attempt": attempt,
            "setting": setting,
            "params": self._space.active(setting),
            "overrides": self._space.overrides(setting),
        }

    # Trials that end.

    def _end(self, live: _Live, record: TrialRecord | None) -> None:
        if record is not None and record.state.is_setting_fault:
            record = dataclasses.replace(record, retries=self._num_losses(live.number))
            self._finish(
                against_baseline(record, self._finished.get(BASELINE), self._constraints)
            )
        elif not self._is_closed:
            self._lose(live, record.cause if record is not None else "its actor was lost")

    def _finish(self, record: TrialRecord) -> None:
        self._given_up_in_a_row = 0
        self._records.append_trial(record)
        self.tell(record)
        logger.info(
            "trial %d %s, %s %s",
            record.number,
            record.state.value,
            self._objective,
            record.value(self._objective),
        )

    def _lose(self, live: _Live, cause: str) -> None:
        """Have a lost trial tried again, or give it up."""
        trial = self._trial(live.number)
        trial.set_user_attr(_LOSSES, [*trial.user_attrs.get(_LOSSES, []), cause])
        self._lost[live.number] = self._lost.get(live.number, 0) + 1
        if self._lost[live.number] <= self._max_retries:
            logger.warning("trial %d was lost and is tried again: %s", live.number, cause)
            self._pending.append(live.number)
            return
        record = self._lost_record(live, cause)
        self._records.append_trial(record)
        if live.number == BASELINE:
            self.failure = f"the baseline was lost {self._lost[BASELINE]} times: {cause}"
            return
        self.tell(record)
        self._given_up_in_a_row += 1
        if self._given_up_in_a_row >= MAX_GIVEN_UP:
            self.failure = f"{MAX_GIVEN_UP} trials in a row were lost, the last one: {cause}"

    def _lost_record(self, live: _Live, cause: str) -> TrialRecord:
        setting = self._setting(live.number)
        return TrialRecord(
            number=live.number,
            state=TrialState.INFRASTRUCTURE,
            params=self._space.active(setting),
            setting=setting,
            overrides=self._space.overrides(setting),
            metrics={},
            absent={},
            violations={constraint.metric: None for constraint in self._constraints},
            feasible=False,
            cause=cause,
            started_at=live.started_at,
            ended_at=timestamp(),
            retries=self._num_losses(live.number),
        )

    def _set_constraints(self, trial: Trial, record: TrialRecord, *, is_complete: bool) -> None:
        values = {
            constraint.metric: record.violations.get(constraint.metric)
            for constraint in self._constraints
        }
        values[COMPLETED] = -1.0 if is_complete else 1.0
        kept = trial.constraints
        for name, value in values.items():
            if name not in kept:
                trial.set_constraint(name, 0.0 if value is None else value)

    def _worst(self) -> float:
        values = [
            value
            for record in self._finished.values()
            if (value := _measured(record, self._objective)) is not None
        ]
        worst = 0.0
        for index, value in enumerate(values):
            if index == 0 or is_better(worst, value, self._objective):
                worst = value
        return worst

    # Starting: the study is brought into line with the records.

    def _reconcile(self, records: Sequence[TrialRecord]) -> None:
        by_number = {record.number: record for record in records}
        self._replay_lost_journal(by_number)
        if not self._study.get_trials(deepcopy=False):
            self._enqueue(self._space.baseline())
        for trial in self._study.get_trials(deepcopy=False):
            self._reconcile_trial(trial, by_number.get(trial.number))

    def _reconcile_trial(self, trial: FrozenTrial, record: TrialRecord | None) -> None:
        if record is not None:
            self._check_same(trial, record)
        is_lost_baseline = (
            trial.number == BASELINE and record is not None and not record.state.is_setting_fault
        )
        if record is not None and not is_lost_baseline:
            if trial.state is StudyState.WAITING:
                ask_parameters(self._study.ask(), self._space)
            self.tell(record)
        elif trial.state is StudyState.RUNNING:
            self._pending.append(trial.number)
        elif trial.state is StudyState.COMPLETE:
            raise SweepError(
                f"Trial {trial.number} finished, but trials.jsonl holds no record of it.",
                "Restore the file from a copy, or start a new sweep under another name.",
            )

    def _replay_lost_journal(self, records: Mapping[int, TrialRecord]) -> None:
        """Make the study's trials up to the last record where the journal lacks them."""
        first = len(self._study.get_trials(deepcopy=False))
        for number in range(first, max(records, default=-1) + 1):
            if number in records:
                self._enqueue(records[number].setting)
            else:
                self._study.add_trial(create_trial(state=StudyState.FAIL))

    def _check_same(self, trial: FrozenTrial, record: TrialRecord) -> None:
        asked = trial.user_attrs.get(SETTING)
        if asked is None or self._space.key(asked) != self._space.key(record.setting):
            raise SweepError(
                f"Trial {record.number} of trials.jsonl ran with {record.setting}, but the study "
                f"asked for {asked}.",
                "The two files are of different sweeps: restore them, or start a new sweep.",
            )

    def _enqueue(self, setting: Setting) -> None:
        self._study.enqueue_trial(setting, user_attrs={SETTING: setting})

    # The study's trials by number.

    def _frozen(self, number: int) -> FrozenTrial:
        return self._study.get_trials(deepcopy=False)[number]

    def _trial(self, number: int) -> Trial:
        return Trial(self._study, self._frozen(number)._trial_id)

    def _setting(self, number: int) -> Setting:
        return dict(self._frozen(number).user_attrs[SETTING])

    def _num_losses(self, number: int) -> int:
        return len(self._frozen(number).user_attrs.get(_LOSSES, []))


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


def open_study(journal: Path, objective: str, sampler: BaseSampler) -> Study:
    """Open or create the study of a sweep.

    Args:
        journal: Optuna's journal without a torn last line.
        objective: Metric to optimise, in its own direction.
        sampler: The study's sampler.

    Raises:
        SweepError: A line of the journal cannot be read.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(journal), _KernelLock(journal))),
            study_name="sweep",
            sampler=sampler,
            direction="maximize" if is_maximised(objective) else "minimize",
            load_if_exists=True,
        )
    except (ValueError, KeyError) as error:
        raise SweepError(
            f"{journal} cannot be read: {error}.",
            "Remove it: the study is made again from the sweep's records.",
        ) from error


def _measured(record: TrialRecord, objective: str) -> float | None:
    """Return the objective of a completed trial, if it is a finite number."""
    value = record.value(objective)
    return value if value is not None and math.isfinite(value) else None
