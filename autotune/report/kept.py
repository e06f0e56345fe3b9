"""A sweep in one small file: what is committed beside a published number, and the table made of it.

Runs in scripts, after a sweep. The file holds every trial's setting, outcome and main numbers, the
versions and, where it is given, the command that made them; no logs, no paths.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.metrics import PHASES, phase_metric
from autotune.objective import StepRecord
from autotune.report.reading import SweepData
from autotune.report.text import changed_knobs, format_value, outcome, ratio_text
from autotune.verl_bridge.startup_times import PREFIX

METRICS = (
    "throughput_tokens_per_s_per_gpu",
    "step_s",
    *(phase_metric(phase, "s") for phase in PHASES),
    "exposed_comm_ratio",
    "exposed_wait_ratio",
    "comm_ratio",
    "kl_std",
    "probe_kl",
    "rank_divergence",
    "grad_deviation",
    "peak_memory_ratio",
    "peak_reserved_gib",
    "mfu_ratio",
    "startup_s",
    "gpu_seconds",
)


def kept_record(data: SweepData, command: str | None = None) -> dict[str, Any]:
    """Return what is kept of a sweep.

    Args:
        data: The sweep, as far as it has come.
        command: What ran it, as a user would write it.
    """
    return {
        "sweep": data.config.name,
        **({} if command is None else {"command": command}),
        "versions": dict(data.versions),
        "calibration": None
        if data.calibration is None
        else data.calibration.constants.to_dict(),
        "verification": None if data.verification is None else data.verification.to_dict(),
        "trials": [
            {
                "number": record.number,
                "outcome": outcome(record),
                "start": record.start.value,
                "setting": dict(record.setting),
                "metrics": {
                    name: value
                    for name in METRICS
                    if (value := record.metrics.get(name)) is not None
                },
                "startup_parts_s": _startup_parts(data.last_attempt(record.number)),
                "interval": record.intervals.get(data.config.objective.metric),
                "cause": record.cause,
            }
            for record in data.trials
        ],
    }


def _startup_parts(steps: Sequence[StepRecord]) -> dict[str, float]:
    """Return what the parts of a trial's start took, which verl's workers report with step 1."""
    return {
        key.removeprefix(PREFIX).removesuffix("_s"): value
        for step in steps
        for key, value in step.metrics.items()
        if key.startswith(PREFIX) and isinstance(value, float)
    }


def table(kept: Mapping[str, Any], metrics: Sequence[str]) -> str:
    """Return the trials as a Markdown table: what each changed, its numbers, and how many times the
    baseline's the first of them is.

    Args:
        kept: What :func:`kept_record` returned.
        metrics: The columns, each printed with the unit of its definition.
    """
    first: Mapping[str, Any] = kept["trials"][0]
    columns = ["setting", *metrics, "of the baseline"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for trial in kept["trials"]:
        cells = [format_value(name, trial["metrics"].get(name)) for name in metrics]
        ratio = _ratio(trial["metrics"].get(metrics[0]), first["metrics"].get(metrics[0]))
        lines.append(
            f"| {' | '.join([changed_knobs(trial['setting'], first['setting']), *cells, ratio])} |"
        )
    return "\n".join(lines)


def _ratio(value: float | None, base: float | None) -> str:
    return "" if value is None or not base else f"{ratio_text(value / base)} times"
