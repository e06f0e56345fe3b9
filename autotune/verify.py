"""Measuring the best settings and the baseline again, in cold jobs, interleaved.

Runs in the driver. Its jobs run whole steps, also where the sweep's trials replayed their rollout,
and what they compare is the objective of whole steps. A Ray Tune searcher walks a fixed schedule;
what to run next and what the jobs prove is :class:`autotune.comparison.Comparison`, derived from
the records alone, so that an interrupted verification goes on when it is started again. Appends to
``verify.jsonl`` and writes ``verification.json`` in the sweep's folder.
"""

import dataclasses
import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray.tune.search import Searcher

from autotune.claim import read_claim
from autotune.comparison import BASELINE, ERROR, Comparison, Plan, estimate
from autotune.config import Sweep
from autotune.errors import BadInputError, SweepError, WriteError
from autotune.knobs import KNOBS, KnobValue
from autotune.objective import RECORD, TrialRecord, best_feasible, is_better, timestamp
from autotune.report.text import duration_s
from autotune.report.verify_text import job_text, setting_name
from autotune.store import LOG_FOLDER, VERIFICATION_FILE, SweepStore
from autotune.trial_metrics import against_baseline
from autotune.tuning import run_tuner, storage_units, trials_of
from autotune.verification import CandidateResult, Verification, VerifyJob
from autotune.verl_bridge.config_file import compose_file, differences
from autotune.verl_bridge.overrides import compose_base, leaves
from autotune.waiting import WaitsForRoom

logger = logging.getLogger(__name__)

FILE = 1
"""Stands for a trial's number where the setting is a file's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A setting to compare with the baseline."""

    number: int
    """The sweep's trial; :data:`FILE` for a file's setting, 0 for the baseline."""
    setting: dict[str, KnobValue]
    overrides: list[str]
    """From the base job to this setting."""


class VerifySearcher(Searcher):
    """Suggests cold jobs one after another until the comparison needs no more.

    A job that was lost through no fault of its setting runs again, up to ``max_retries`` times in a
    row. Not safe for threads; Tune uses one.

    Args:
        next_job: Block and trial of the next job, from all that has run; None ends it.
        make_config: What the trial gets, see :meth:`autotune.search.SweepSearcher.suggest`.
        on_job: Gets block, trial and record of a finished job; must have stored it on return.
        max_retries: Losses of one job that are made good.
    """

    def __init__(
        self,
        *,
        next_job: Callable[[], tuple[int, int] | None],
        make_config: Callable[[int, int], dict[str, Any]],
        on_job: Callable[[int, int, TrialRecord], None],
        max_retries: int,
    ) -> None:
        super().__init__()
        self.failure: str | None = None
        """Why no further job can be run, see :meth:`fail`."""
        self._next_job = next_job
        self._make_config = make_config
        self._on_job = on_job
        self._max_retries = max_retries
        self._live: dict[str, tuple[int, int]] = {}
        self._losses = 0

    def __getstate__(self) -> dict[str, Any]:
        # Tune pickles its configuration for Tuner.restore, which we never call.
        return {}

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:  # type: ignore[override]
        """Return the next job, None while one runs, or FINISHED."""
        if self._live:
            return None
        coming = None if self.failure is not None else self._next_job()
        if coming is None:
            return Searcher.FINISHED
        self._live[trial_id] = coming
        return self._make_config(coming[1], self._losses)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        block, trial = self._live.pop(trial_id)
        text = None if error or result is None else result.get(RECORD)
        record = TrialRecord.from_dict(json.loads(text)) if text is not None else None
        if record is not None and record.state.is_setting_fault:
            self._losses = 0
            try:
                self._on_job(block, trial, record)
            except WriteError as error:
                # Tune would hide it behind its own error.
                self.fail(str(error))
            return
        cause = record.cause if record is not None else "its actor was lost"
        self._losses += 1
        logger.warning("a job of trial %d was lost: %s", trial, cause)
        if self._losses > self._max_retries:
            self.fail(f"a job of trial {trial} was lost {self._losses} times: {cause}")

    def fail(self, problem: str) -> None:
        """Run no further job.

        Args:
            problem: Why it cannot go on.
        """
        logger.error("%s", problem)
        self.failure = problem

    def save(self, checkpoint_path: str) -> None:
        """Write nothing: the records decide what is left to do."""

    def restore(self, checkpoint_path: str) -> None:
        """Read nothing, see :meth:`save`."""


def best_candidates(sweep: Sweep, records: Sequence[TrialRecord]) -> list[Candidate]:
    """Return the best feasible settings that beat the baseline, as many as the sweep asks for."""
    objective = sweep.config.objective.metric
    baseline = next((record for record in records if record.number == BASELINE), None)
    bar = baseline.value(objective) if baseline is not None else None
    own = sweep.space.baseline() if baseline is None else baseline.setting
    left = [record for record in records if record.setting != own]
    found: list[Candidate] = []
    while len(found) < sweep.config.verify.top_k:
        best = best_feasible(left, objective)
        value = best.value(objective) if best is not None else None
        if best is None or value is None or bar is None or not is_better(value, bar, objective):
            break
        # Repetitions of a setting are one candidate.
        left = [record for record in left if record.setting != best.setting]
        found.append(
            Candidate(number=best.number, setting=best.setting, overrides=best.overrides)
        )
    return found


def file_candidate(sweep: Sweep, path: Path) -> tuple[Candidate, list[str]]:
    """Return the setting of a production file, and the keys in which it differs apart from knobs.

    Raises:
        BadInputError: Not a verl configuration, or it sets every knob as the base job does, or verl
            would refuse its setting in that job.
    """
    config = compose_file(path)
    flat = leaves(config)
    setting: dict[str, KnobValue] = {}
    for name, own in sweep.space.baseline().items():
        value = KNOBS[name].from_config(flat)
        setting[name] = own if value is None else value
    overrides = sweep.space.overrides(setting)
    if not overrides:
        raise BadInputError(
            f"{path} sets every knob of the sweep as the base job does.",
            "There is nothing to compare: name the base job that it was tuned from.",
        )
    refused = sweep.space.violations(setting)
    if refused:
        raise BadInputError(
            f"verl would refuse the setting of {path} on this base job: {'; '.join(refused)}.",
            "Name a base job with the model, batch and number of ranks that it was tuned for.",
        )
    job = compose_base(sweep.config.base.config_name, [*sweep.base_overrides, *overrides])
    return Candidate(number=FILE, setting=setting, overrides=overrides), differences(job, config)


def plan_name(sweep: Sweep, candidates: Sequence[Candidate], attempt: int) -> str:
    """Return a name that is equal exactly where jobs may be counted together."""
    config = sweep.of_whole_steps().config
    content = [
        [sweep.base_overrides, [dataclasses.asdict(candidate) for candidate in candidates]],
        [dataclasses.asdict(part) for part in (config.trial, config.verify, config.resources)],
        [config.objective.metric, *(dataclasses.asdict(limit) for limit in config.constraints)],
    ]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return f"{digest[:12]}.{attempt}"


def attempt_of(
    sweep: Sweep, store: SweepStore, candidates: Sequence[Candidate], *, again: bool
) -> int:
    """Return the number of the verification to go on with: the last one, or a new one."""
    names = {job.plan for job in store.read_verify_jobs()}
    attempt = 1
    while plan_name(sweep, candidates, attempt + 1) in names:
        attempt += 1
    is_there = plan_name(sweep, candidates, attempt) in names
    return attempt + 1 if again and is_there else attempt


class Verifier:
    """One verification of a sweep's settings, begun or gone on with.

    Args:
        sweep: The sweep, whose base job is the baseline.
        store: Where records go; locked.
        candidates: What is compared with the baseline, at least one.
        console: Where progress goes (rich).
        attempt: Which verification of these settings it is, see :func:`attempt_of`.
        file: The production file whose setting the one candidate is; None: settings of a sweep.
    """

    def __init__(
        self,
        sweep: Sweep,
        store: SweepStore,
        candidates: Sequence[Candidate],
        *,
        console: Any,
        attempt: int,
        file: Path | None = None,
    ) -> None:
        self._sweep = sweep.of_whole_steps()
        self._store = store
        self._console = console
        self._file = file
        baseline = Candidate(number=BASELINE, setting=sweep.space.baseline(), overrides=[])
        self._candidates = {found.number: found for found in (baseline, *candidates)}
        self._plan = Plan(
            candidates=tuple(found.number for found in candidates),
            max_jobs=sweep.config.verify.max_jobs,
            interval_width_ratio=sweep.config.verify.interval_width_ratio,
        )
        self._name = plan_name(sweep, candidates, attempt)
        self._jobs = [job for job in store.read_verify_jobs() if job.plan == self._name]

    @property
    def needs_jobs(self) -> bool:
        """Whether something is left to run."""
        return self._next_job() is not None

    def run(self) -> Verification | None:
        """Run what is left and write the outcome; None when it was interrupted.

        Ray must be connected where :attr:`needs_jobs`.

        Raises:
            SweepError: No job can be run.
        """
        if self.needs_jobs:
            searcher = VerifySearcher(
                next_job=self._next_job,
                make_config=self._config_of,
                on_job=self._take,
                max_retries=self._sweep.config.trial.max_retries,
            )
            logs = self._store.folder / LOG_FOLDER / "verify"
            run_tuner(
                searcher,
                trials_of(self._sweep, logs, always_cold=True),
                max_concurrent=1,
                callbacks=[
                    WaitsForRoom(self._sweep.config.resources, storage_units(self._sweep))
                ],
            )
            if searcher.failure is not None:
                raise SweepError(
                    f"The verification could not go on: {searcher.failure}.",
                    "Its finished jobs are kept: run the same command again.",
                )
            if self.needs_jobs:
                return None
        outcome = self._outcome()
        self._store.write(VERIFICATION_FILE, json.dumps(outcome.to_dict(), indent=2) + "\n")
        return outcome

    def _comparison(self, *, is_over: bool = False) -> Comparison:
        return Comparison(
            self._plan,
            self._jobs,
            objective=self._sweep.config.objective.metric,
            constraints=self._sweep.config.constraints,
            is_over=is_over,
        )

    def _next_job(self) -> tuple[int, int] | None:
        return None if self._is_out_of_time() else self._comparison().next_job()

    def _is_out_of_time(self) -> bool:
        limit = self._sweep.config.verify.max_wall_s
        return limit is not None and sum(duration_s(job.record) for job in self._jobs) >= limit

    def _config_of(self, trial: int, attempt: int) -> dict[str, Any]:
        candidate = self._candidates[trial]
        return {
            "number": len(self._jobs),
            "attempt": attempt,
            "setting": candidate.setting,
            "params": self._sweep.space.active(candidate.setting),
            "overrides": candidate.overrides,
        }

    def _take(self, block: int, trial: int, record: TrialRecord) -> None:
        if trial != BASELINE:
            # What compares with the baseline's numbers takes them from its newest job.
            newest = next((job.record for job in self._jobs[::-1] if job.trial == BASELINE), None)
            record = against_baseline(record, newest, self._sweep.config.constraints)
        job = VerifyJob(plan=self._name, block=block, trial=trial, record=record)
        self._store.append_verify_job(job)
        self._jobs.append(job)
        done = f"verify job {len(self._jobs)} of at most {self._plan.max_jobs}"
        name = setting_name(trial, is_file=self._file is not None)
        line = f"{done}, {name}: {job_text(record, self._sweep.config)}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _outcome(self) -> Verification:
        comparison = self._comparison(is_over=True)
        results = [self._result(number, comparison) for number in self._plan.candidates]
        winner = max(
            (found for found in results if found.is_proven),
            key=lambda found: found.gain_ratio.value if found.gain_ratio is not None else 0.0,
            default=None,
        )
        records = [job.record for job in self._jobs]
        return Verification(
            sweep=self._sweep.config.name,
            objective=self._sweep.config.objective.metric,
            confidence=1 - ERROR,
            interval_width_ratio=self._plan.interval_width_ratio,
            baseline=self._objective_of(BASELINE),
            candidates=results,
            winner=winner.number if winner is not None else None,
            num_jobs=len(self._jobs),
            max_jobs=self._plan.max_jobs,
            why_ended=self._why_ended(comparison),
            gpu_seconds=sum(record.metrics.get("gpu_seconds") or 0.0 for record in records),
            started_at=min((record.started_at for record in records), default=timestamp()),
            ended_at=max((record.ended_at for record in records), default=timestamp()),
            file=str(self._file.resolve()) if self._file is not None else None,
            claim=read_claim(self._file.read_text("utf-8")) if self._file is not None else None,
        )

    def _result(self, number: int, comparison: Comparison) -> CandidateResult:
        finding, candidate = comparison.finding(number), self._candidates[number]
        return CandidateResult(
            number=number,
            setting=candidate.setting,
            overrides=candidate.overrides,
            decision=finding.decision,
            reason=finding.reason,
            gain_ratio=finding.gain_ratio,
            objective=self._objective_of(number),
            constraints=finding.constraints,
            num_jobs=sum(job.trial == number for job in self._jobs),
        )

    def _objective_of(self, number: int) -> Any:
        metric = self._sweep.config.objective.metric
        values = [job.record.value(metric) for job in self._jobs if job.trial == number]
        return estimate([value for value in values if value is not None], ERROR)

    def _why_ended(self, comparison: Comparison) -> str:
        if comparison.baseline_failure is not None:
            return comparison.baseline_failure
        if self._is_out_of_time():
            return f"the time is over (verify.max_wall_s={self._sweep.config.verify.max_wall_s:g})"
        if all(number in comparison.settled for number in self._plan.candidates):
            return "every setting is known as well as was asked"
        return f"all {self._plan.max_jobs} jobs ran (verify.max_jobs)"
