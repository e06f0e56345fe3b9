"""Which trial runs next, and what a trial's end means: a Ray Tune searcher that survives any kill.

Runs in the driver, which holds the sweep's lock. Baseline first, then the settings to try first,
then what the sampler wants, at last the best settings again; until the budget is used up or no more
is expected. A record is on disk before the study hears of it, so a kill between the two loses
nothing. Does not start trials, and does not decide how a trial ended, except that one which
:mod:`autotune.early_stop` cut short is written down here. Imports its siblings ``sampler``,
``study``, ``budget`` and ``early_stop``.
"""

import dataclasses
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from optuna.study import Study
from optuna.trial import Trial
from ray.tune.search import Searcher

from autotune.budget import Budget, Cost, Stop
from autotune.early_stop import EarlyStop
from autotune.knobs import KnobValue
from autotune.models.evidence import Evidence
from autotune.models.promise import goal_of
from autotune.objective import (
    BASELINE,
    RECORD,
    START,
    STEP_RECORD,
    Constraint,
    Start,
    StepRecord,
    TrialRecord,
    TrialState,
    best_feasible,
    evaluate,
    timestamp,
)
from autotune.redaction import redact
from autotune.sampler import FeasibleSampler, SearchSpace, Setting
from autotune.settings import SearchConfig
from autotune.study import Records, SweepStudy
from autotune.trial_metrics import against_baseline, summarise

logger = logging.getLogger(__name__)

MAX_GIVEN_UP = 3
"""Trials lost in a row, retries included, before the cluster is held to be at fault."""
_MIN_FINISHED = 8
"""Finished trials before the search may say that no more is to be expected."""


@dataclass(slots=True)
class _Live:
    """A Tune trial that runs."""

    number: int
    started_at: str
    steps: list[StepRecord] = field(default_factory=list)
    stop_cause: str | None = None
    """Why it is being stopped early; None while it is not."""


class SweepSearcher(Searcher):
    """Suggests settings until the budget is used up or no more is expected.

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
        trade_off: A second metric to optimise at once; the sweep then looks for a Pareto front.
        steps_per_trial: Warm-up, measured and profiled steps; 0 where a trial is not made of steps.
        num_ranks: Ranks that a trial holds, for what a trial that was stopped early cost.
        earlier: What other sweeps found, where it holds for this one.
        suggested: Their best settings, tried right after ``settings.first``.
        static: Knob -> bytes of its part in the base job, for the memory model.

    Raises:
        SweepError: Records and study do not belong together, or the storage cannot be read.
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
        trade_off: str | None = None,
        steps_per_trial: int = 0,
        num_ranks: int = 1,
        earlier: Sequence[Evidence] = (),
        suggested: Sequence[Setting] = (),
        static: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self.failure: str | None = None
        """Why the search ended early, see :meth:`fail`."""
        self._stop: Stop | None = None
        self._space = space
        self._settings = settings
        self._objective = objective
        self._constraints = tuple(constraints)
        self._records = records
        self._max_retries = max_retries
        self._num_ranks = num_ranks
        self._goal = goal_of(objective, constraints, trade_off)
        self._sampler = FeasibleSampler(space, settings, self._goal, earlier, static)
        self._ledger = SweepStudy(space, self._sampler, self._goal, records, settings.storage)
        self._budget = Budget(settings, steps_per_trial)
        # A trial that is slow may be on the front of two objectives.
        may_stop = settings.early_stop and trade_off is None
        self._early_stop = EarlyStop(objective, steps_per_trial) if may_stop else None
        self._live: dict[str, _Live] = {}
        self._lost: dict[int, int] = {}
        self._given_up_in_a_row = 0
        self._is_closed = False
        self._gain_at: tuple[int, float] = -1, 0.0
        self._contenders_at: tuple[int, list[Setting]] = -1, []
        first = first_settings(space, [*settings.first, *suggested])
        self._pending = self._ledger.reconcile(records.read_trials(), first)
        if BASELINE in self._ledger.finished:
            self._check_baseline(self._ledger.finished[BASELINE])

    @property
    def study(self) -> Study:
        """The Optuna study, for reading."""
        return self._ledger.optuna

    @property
    def num_finished(self) -> int:
        """Trials that count: those whose outcome is evidence about their setting."""
        return sum(record.state.is_setting_fault for record in self._ledger.finished.values())

    def record_of(self, number: int) -> TrialRecord | None:
        """Return a finished trial as it was stored; None while it has not ended."""
        return self._ledger.finished.get(number)

    @property
    def stop_reason(self) -> str | None:
        """Why no new setting is tried although trials of the budget are left, in words."""
        if self._stop is None:
            return None
        return (
            f"Stopped after {self.num_finished} of {self._settings.num_trials} trials: "
            f"{self._stop.text}."
        )

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to try: the budget is used up, or the space."""
        return not self._live and not self._pending and self._next_asked() is None

    def has_next(self) -> bool:
        """Say whether another trial is to start, as far as is known: one that runs may still be
        lost, and is then tried again."""
        if self._is_closed or self.failure is not None:
            return False
        if len(self._live) >= self._settings.max_concurrent:
            # Nobody waits for the answer.
            return True
        return bool(self._pending) or self._next_asked() is not None

    def cost_left(self) -> Cost | None:
        """Return what the rest of the sweep is expected to cost; None before a trial has finished.

        Trials gather around the best setting: each is a start-up and its steps at the best time.
        """
        finished = list(self._ledger.finished.values())
        best = best_feasible(finished, self._objective)
        return self._budget.left(finished, best.value("step_s") if best is not None else None)

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:  # type: ignore[override]
        """Return the next setting, None to be asked again later, or FINISHED."""
        if self._is_closed or self.failure is not None:
            return None if self._live else Searcher.FINISHED
        if len(self._live) >= self._settings.max_concurrent:
            return None
        try:
            if self._pending:
                trial = self._ledger.trial(self._pending.pop(0))
            else:
                ask = self._next_asked()
                if ask is None:
                    return None if self._live else Searcher.FINISHED
                trial = ask()
            return self._start(trial_id, trial)
        except OSError as error:
            self.fail(f"the study could not be written: {error}")
            return None if self._live else Searcher.FINISHED

    def note_step(self, trial_id: str, result: Mapping[str, Any]) -> str | None:
        """Take note of a running trial's step; return why the trial should be stopped, if so.

        Called by :class:`autotune.early_stop.EarlyStopScheduler` for every result.
        """
        live = self._live.get(trial_id)
        if live is None or STEP_RECORD not in result or RECORD in result:
            return None
        live.steps.append(StepRecord.from_dict(json.loads(result[STEP_RECORD])))
        if self._early_stop is None or live.number == BASELINE:
            return None
        if self._ledger.repeats(live.number):
            return None
        best = best_feasible(list(self._ledger.finished.values()), self._objective)
        live.stop_cause = self._early_stop.cause(live.steps, best)
        return live.stop_cause

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        live = self._live.pop(trial_id, None)
        if live is None:
            logger.warning("Ray Tune reports a trial that was not suggested: %s", trial_id)
            return
        text = None if error or result is None else result.get(RECORD)
        record = TrialRecord.from_dict(json.loads(text)) if text is not None else None
        if record is None and live.stop_cause is not None and result is not None and not error:
            record = self._stopped_record(live, result)
        assert record is None or record.number == live.number, record
        try:
            self._end(live, record)
        except OSError as error:
            self.fail(f"trial {live.number} could not be kept: {error}")

    def fail(self, problem: str) -> None:
        """Start no more trials; the sweep ends when those that run have ended.

        Args:
            problem: Why it cannot go on.
        """
        logger.error("%s", problem)
        self.failure = problem

    def close(self) -> None:
        """Suggest nothing more; trials that end without a record from now on were interrupted.

        They stay open in the study, and the next run of the sweep continues them.
        """
        self._is_closed = True

    def save(self, checkpoint_path: str) -> None:
        """Write which Tune trial runs which of ours; all else is in the study and the records."""
        live = {
            trial_id: {"number": live.number, "started_at": live.started_at}
            for trial_id, live in self._live.items()
        }
        Path(checkpoint_path).write_text(json.dumps(live))

    def restore(self, checkpoint_path: str) -> None:
        """Take up the trials that Tune goes on with by itself."""
        for trial_id, live in json.loads(Path(checkpoint_path).read_text()).items():
            if live["number"] in self._pending:
                self._pending.remove(live["number"])
                self._live[trial_id] = _Live(**live)

    # Suggesting.

    def _next_asked(self) -> Callable[[], Trial] | None:
        """Return how the next trial is asked; None when there is none."""
        left = self._settings.num_trials - self.num_finished - len(self._live)
        if left <= 0:
            return None
        if self._ledger.is_waiting():
            return self._ledger.ask
        self._stop = self._reason_to_stop()
        if self._stop is not None and not self._stop.allows_repeats:
            return None
        wanted = int(self._settings.confirm_ratio * self._settings.num_trials)
        to_repeat = min(wanted - self._ledger.num_repeats(), left)
        is_over = self._stop is not None or self._sampler.is_exhausted(self.study)
        if (left > to_repeat or not self._contenders()) and not is_over:
            return self._ledger.ask
        return self._ask_repeat if to_repeat > 0 and self._contenders() else None

    def _reason_to_stop(self) -> Stop | None:
        finished = list(self._ledger.finished.values())
        spent = self._budget.reason(finished, [live.started_at for live in self._live.values()])
        if spent is not None:
            return spent
        least = self._settings.min_gain_ratio
        if least == 0 or self.num_finished < _MIN_FINISHED:
            return None
        if self._gain_at[0] != len(finished):
            candidates = self._sampler.candidates(self.study, len(finished))
            gains = [
                self._sampler.promise(self.study, weight).expected_gain(candidates)
                for weight in self._sampler.weights
                if candidates
            ]
            self._gain_at = len(finished), max(gains, default=0.0)
        if self._gain_at[1] >= least:
            return None
        return Stop(text=f"less than {100 * least:g} % expected from one more", allows_repeats=True)

    def _contenders(self) -> list[Setting]:
        """Return the measured settings that may be the best one."""
        finished = len(self._ledger.finished)
        if self._contenders_at[0] != finished:
            found = self._sampler.promise(self.study).contenders()
            self._contenders_at = finished, [dict(setting) for setting in found]
        return self._contenders_at[1]

    def _ask_repeat(self) -> Trial:
        """Ask for the contender that was measured least, the most promising of several."""
        setting = min(self._contenders(), key=self._ledger.num_asked)
        self._ledger.enqueue(setting, repeats=True)
        return self._ledger.ask()

    def _start(self, trial_id: str, trial: Trial) -> dict[str, Any]:
        attempt = self._ledger.start(trial)
        self._live[trial_id] = _Live(trial.number, timestamp())
        setting = self._ledger.setting(trial.number)
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
            retries = record.retries + self._ledger.num_losses(live.number)
            self._finish(
                against_baseline(
                    dataclasses.replace(record, retries=retries),
                    self._ledger.finished.get(BASELINE),
                    self._constraints,
                )
            )
        elif not self._is_closed:
            self._lose(live, record.cause if record is not None else "its actor was lost")

    def _finish(self, record: TrialRecord) -> None:
        self._given_up_in_a_row = 0
        self._records.append_trial(record)
        self._ledger.tell(record)
        self._check_baseline(record)
        left = self.cost_left()
        logger.info(
            "trial %d %s, %s %s; about %s GPU hours left",
            record.number,
            record.state.value,
            self._objective,
            record.value(self._objective),
            "?" if left is None else f"{left.gpu_hours:.3g}",
        )

    def _check_baseline(self, record: TrialRecord) -> None:
        """End the sweep where the base job itself is broken: its settings would all be too. A base
        job that only needs more memory than there is has settings that need less."""
        broken = (TrialState.CRASH, TrialState.HANG, TrialState.NAN)
        if record.number == BASELINE and record.state in broken:
            self.fail(
                f"the base job itself does not run ({record.state.value}: {record.cause}). Mend "
                "it, and start the sweep under another name"
            )

    def _lose(self, live: _Live, cause: str) -> None:
        """Have a lost trial tried again, or give it up."""
        cause = redact(cause)
        self._ledger.add_loss(live.number, cause)
        self._lost[live.number] = self._lost.get(live.number, 0) + 1
        if self._lost[live.number] <= self._max_retries:
            logger.warning("trial %d was lost and is tried again: %s", live.number, cause)
            self._pending.append(live.number)
            return
        self._records.append_trial(self._lost_record(live, cause))
        if live.number == BASELINE:
            self.fail(f"the baseline was lost {self._lost[BASELINE]} times: {cause}")
            return
        self._ledger.tell(self._lost_record(live, cause))
        self._given_up_in_a_row += 1
        if self._given_up_in_a_row >= MAX_GIVEN_UP:
            self.fail(f"{MAX_GIVEN_UP} trials in a row were lost, the last one: {cause}")

    def _lost_record(self, live: _Live, cause: str) -> TrialRecord:
        return self._record(
            live,
            state=TrialState.INFRASTRUCTURE,
            cause=cause,
            violations={constraint.metric: None for constraint in self._constraints},
            retries=self._ledger.num_losses(live.number),
        )

    def _stopped_record(self, live: _Live, result: Mapping[str, Any]) -> TrialRecord:
        """Return the record of a trial that was cut short, from the steps that it reported.

        Args:
            live: The trial.
            result: Its last Tune result.
        """
        assert live.stop_cause is not None
        elapsed_s = float(result.get("time_total_s", 0.0))
        in_steps_s = sum(_seconds(step) for step in live.steps)
        found = summarise(
            live.steps,
            startup_s=max(elapsed_s - in_steps_s, 0.0),
            gpu_seconds=self._num_ranks * elapsed_s,
        )
        return self._record(
            live,
            state=TrialState.STOPPED,
            start=Start(result.get(START, Start.COLD)),
            cause=live.stop_cause,
            metrics=found.metrics,
            absent=found.absent,
            intervals=found.intervals,
            violations=evaluate(found.metrics, self._constraints)[0],
        )

    def _record(self, live: _Live, **changes: Any) -> TrialRecord:
        setting = self._ledger.setting(live.number)
        values: dict[str, Any] = {
            "number": live.number,
            "params": self._space.active(setting),
            "setting": setting,
            "overrides": self._space.overrides(setting),
            "metrics": {},
            "absent": {},
            "feasible": False,
            "started_at": live.started_at,
            "ended_at": timestamp(),
            "retries": 0,
        }
        return TrialRecord(**{**values, **changes})


def first_settings(
    space: SearchSpace, hypotheses: Sequence[Mapping[str, KnobValue]]
) -> list[Setting]:
    """Return the settings that a sweep begins with: the baseline, then valid hypotheses, each once.

    Args:
        space: The valid settings; what a hypothesis leaves out is as in the baseline.
        hypotheses: Settings, whole or in part, brought to the nearest allowed values.
    """
    baseline = space.baseline()
    found = {space.key(baseline): baseline}
    for hypothesis in hypotheses:
        setting = space.snap({**baseline, **hypothesis})
        if space.is_valid(setting):
            found.setdefault(space.key(setting), setting)
    return list(found.values())


def _seconds(step: StepRecord) -> float:
    value = step.metrics.get("timing_s/step")
    return float(value) if isinstance(value, int | float) else 0.0
