"""Did a sweep's trials that ran at once slow one another down?

Runs in whatever process reports. Pure functions from records to text. Compared are the jobs of
equal settings, fresh ones only: a verification runs its jobs one at a time, so that every setting
that it measures again after a trial beside others tells the two apart. The baseline is one as a
rule: it starts together with the first of the other trials.
"""

from collections.abc import Sequence
from datetime import datetime

from autotune.measure.at_once import Disturbance, disturbance
from autotune.measure.intervals import intersect, length, merge
from autotune.objective import Start, TrialRecord, is_maximised
from autotune.report.reading import SweepData
from autotune.report.text import plural

ALONE_RATIO, BESIDE_RATIO = 0.05, 0.5
"""Share of its time in which other trials ran, up to which a trial ran alone, and from which beside
others."""


def disturbance_of(data: SweepData) -> Disturbance | None:
    """Return how the objective beside others compares with alone, below 1 where it is worse.

    Returns:
        None where no setting ran both ways in fresh jobs of whole steps.
    """
    if data.config.trial.replays_rollout:
        # The verification's jobs run other steps.
        return None
    objective = data.config.objective.metric
    alone = [job.record for job in data.verify_jobs]
    beside = []
    for record in data.trials:
        covered = _covered_ratio(record, data.trials)
        if covered <= ALONE_RATIO:
            alone.append(record)
        elif covered >= BESIDE_RATIO:
            beside.append(record)
    return disturbance(
        [
            (_values(alone, setting, objective), _values(beside, setting, objective))
            for setting in _distinct(beside)
        ]
    )


def disturbance_line(data: SweepData) -> str:
    """Return what running at once did to the trials, as a sentence; empty where none could be."""
    if data.config.search.max_concurrent == 1:
        return ""
    found = disturbance_of(data)
    if found is None:
        return (
            "Trials at once: whether they slow one another down is not known; no setting ran both "
            "beside others and alone in fresh jobs."
        )
    jobs = f"{plural(found.num_beside, 'job')} beside others, {found.num_alone} alone"
    return f"Trials at once: {disturbance_text(found)} ({jobs})."


def disturbance_text(found: Disturbance) -> str:
    """Return the finding in words."""
    times = f"{found.ratio:.2f} times as fast as alone ({found.low:.2f} to {found.high:.2f})"
    if found.high < 1:
        return f"they slow one another down, {times}; compare them with one another only"
    if found.low > 1:
        return f"{times}, so that something else than company differed"
    return f"no difference beyond noise, {times}"


def _covered_ratio(record: TrialRecord, trials: Sequence[TrialRecord]) -> float:
    """Return the share of a trial's time in which another one ran."""
    own = merge([_span_s(record)])
    others = merge([_span_s(trial) for trial in trials if trial.number != record.number])
    return length(intersect(own, others)) / length(own) if len(own) else 0.0


def _span_s(record: TrialRecord) -> tuple[float, float]:
    started, ended = (
        datetime.fromisoformat(text).timestamp() for text in (record.started_at, record.ended_at)
    )
    return started, ended


def _distinct(records: Sequence[TrialRecord]) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for record in records:
        if record.setting not in found:
            found.append(dict(record.setting))
    return found


def _values(
    records: Sequence[TrialRecord], setting: dict[str, object], objective: str
) -> list[float]:
    """Return what fresh jobs of a setting measured, so that more is better."""
    values = [
        record.value(objective)
        for record in records
        if record.setting == setting and record.start is Start.COLD and record.recovery is None
    ]
    measured = [value for value in values if value]
    return measured if is_maximised(objective) else [1 / value for value in measured]
