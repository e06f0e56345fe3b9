"""What a sweep would do, said before it does anything: space, first settings, cost.

Runs in the driver; needs no Ray and no GPU. What has no basis yet is said to have none: how long a
step generates is known once trials of this sweep have run; the time limits bound it until then, and
what devices and links would need to train on sequences of full length is predicted.
"""

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.config import Sweep
from autotune.knobs import KnobValue
from autotune.measure.stats import median
from autotune.models.static_memory import static_bytes
from autotune.objective import TrialRecord
from autotune.placement import cpus_of_a_trial, node_bundle
from autotune.plan_forecast import Basis, Forecasts, forecast, forecast_lines
from autotune.report.text import plural
from autotune.store import SweepStore
from autotune.sweep import outline_of, store_of
from autotune.tuning import storage_units
from autotune.verl_bridge import job
from autotune.verl_bridge.overrides import leaves
from autotune.warm_start import model_config

_GROW_WITH_THEIR_KNOB = {
    "ppo_micro_batch_size_per_gpu": "activations and logits of an update",
    "log_prob_micro_batch_size_per_gpu": "logits of scoring",
}
_MEMORY_PARTS = {
    "offload_policy": "parameters, gradients and optimizer, sharded",
    "reshard_after_forward": "gathered parameters, where they are kept",
    **_GROW_WITH_THEIR_KNOB,
}
"""Knob that decides a part of the memory -> what the part is."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What the trials that are left cost."""

    num_trials: int
    """Left to run."""
    gpu_hours: float
    """Of all of them; rank-hours on a machine without GPUs."""
    wall_hours: float
    basis: str
    """Where the times are from."""


@dataclass(frozen=True, kw_only=True)
class MemoryPart:
    """A first guess of what one part of the job takes on one device; no trial has measured it."""

    name: str
    base_gib: float
    """With the base job's settings."""
    largest_gib: float
    """With the largest value that the sweep may try."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that is known before the sweep starts."""

    first: Sequence[Mapping[str, KnobValue]]
    """Settings in the order in which they are tried, the baseline first."""
    at_most: Cost
    """When every trial takes as long as its time limits allow."""
    training: Cost | None
    """Of the phases that train and score alone, in the base job, as fast as devices and links allow
    with sequences of full length; None where nothing is predicted."""
    expected: Cost | None
    """From the trials that have finished; None when none has."""
    memory: Sequence[MemoryPart]
    """Empty where the model's configuration is not on this machine, or is of an unknown kind."""
    forecasts: Forecasts
    remote_code: Sequence[str]
    """Settings of the base job that let a model's repository run code."""


def make_plan(sweep: Sweep, num_first: int, basis: Basis | None) -> Plan:
    """Return what the sweep would do.

    Args:
        sweep: The loaded sweep.
        num_first: How many settings to look ahead at most; the later ones depend on results.
        basis: Speed of links and devices, see :func:`autotune.plan_forecast.basis_of`.
    """
    store = store_of(sweep)
    records = store.read_trials() if store.folder.is_dir() else []
    base = leaves(sweep.base_config)
    forecasts = forecast(sweep, basis)
    return Plan(
        first=first_settings(sweep, num_first),
        at_most=limit_of_cost(sweep, len(records)),
        training=training_cost(sweep, len(records), forecasts),
        expected=expected_cost(sweep, records),
        forecasts=forecasts,
        memory=memory_parts(sweep, static_bytes(model_config(base), base)),
        remote_code=remote_code(base),
    )


def memory_parts(sweep: Sweep, static: Mapping[str, float]) -> list[MemoryPart]:
    """Return the parts of a job's memory, at the base job's settings and at the sweep's largest.

    Args:
        sweep: The loaded sweep.
        static: See :func:`autotune.models.static_memory.static_bytes`.
    """
    parts = []
    for knob, name in _MEMORY_PARTS.items():
        if knob not in static:
            continue
        base_gib = static[knob] / 2**30
        growth = _growth(sweep, knob) if knob in _GROW_WITH_THEIR_KNOB else 1.0
        parts.append(MemoryPart(name=name, base_gib=base_gib, largest_gib=base_gib * growth))
    return parts


def _growth(sweep: Sweep, knob: str) -> float:
    """Return the sweep's largest value of a size as a multiple of the base job's."""
    domain, value = sweep.config.knobs.get(knob), sweep.space.baseline().get(knob)
    if domain is None or not isinstance(value, int | float):
        return 1.0
    largest = max(domain.choices) if domain.choices else domain.high
    return 1.0 if largest is None else max(1.0, float(largest) / value)


def first_settings(sweep: Sweep, num_first: int) -> list[Mapping[str, KnobValue]]:
    """Return the first settings of a fresh search, as its own searcher suggests them.

    No more than those that are asked before the sampler's model is used: the others depend on what
    is measured.
    """
    from autotune.search import SweepSearcher
    from autotune.search import first_settings as given_settings

    search = sweep.config.search
    num_given = len(given_settings(sweep.space, search.first))
    count = min(num_first, search.num_trials, max(search.num_startup_trials, num_given))
    with tempfile.TemporaryDirectory(prefix="autotune_plan_") as folder:
        store = SweepStore(Path(folder))
        with store.locked():
            searcher = SweepSearcher(
                sweep.space,
                dataclasses.replace(search, max_concurrent=count),
                objective=sweep.config.objective.metric,
                constraints=sweep.config.constraints,
                max_retries=sweep.config.trial.max_retries,
                records=store,
            )
            return list(_settings(searcher, count))


def _settings(searcher: Any, count: int) -> Iterator[Mapping[str, KnobValue]]:
    for index in range(count):
        suggested = searcher.suggest(f"plan_{index}")
        if not isinstance(suggested, dict):
            return
        yield suggested["setting"]


def limit_of_cost(sweep: Sweep, num_finished: int) -> Cost:
    """Return the cost when every trial runs into its time limits."""
    trial = sweep.config.trial
    steps = outline_of(sweep).steps_per_trial
    longest_s = trial.startup_timeout_s + steps * trial.step_timeout_s
    return _cost(sweep, num_finished, longest_s, "the time limits of the sweep file")


def training_cost(sweep: Sweep, num_finished: int, found: Forecasts) -> Cost | None:
    """Return the cost of the phases whose time is predicted for the base job."""
    if found.base.communication is None:
        return None
    trial_s = outline_of(sweep).steps_per_trial * found.base.communication.step_s
    basis = (
        f"the base job as predicted below, every sequence {found.sequence_tokens} tokens long; "
        "start-up, generation and the host's own work come on top"
    )
    return _cost(sweep, num_finished, trial_s, basis)


def expected_cost(sweep: Sweep, records: Sequence[TrialRecord]) -> Cost | None:
    """Return the cost when the remaining trials take as long as those that have finished."""
    spent = [value for record in records if (value := record.metrics.get("gpu_seconds"))]
    if not spent:
        return None
    wall_s = median(spent) / sweep.config.resources.num_ranks
    basis = f"the median of {len(spent)} finished trials"
    return _cost(sweep, len(records), wall_s, basis)


def remote_code(base_leaves: Mapping[str, object]) -> list[str]:
    """Return the base job's settings by which code of a model's repository is run."""
    return sorted(
        key for key, value in base_leaves.items() if key.endswith("trust_remote_code") and value
    )


def text_of(sweep: Sweep, plan: Plan) -> str:
    """Return the plan for the terminal."""
    resources = sweep.config.resources
    unit = "GPU" if resources.device == "gpu" else "rank"
    bundle = ", ".join(f"{amount:g} {name}" for name, amount in node_bundle(resources).items())
    cpus = cpus_of_a_trial(resources, storage_units(sweep))
    lines = [
        f"One trial: {plural(resources.nodes, 'node')} x ({bundle}), "
        f"{resources.strategy}; {cpus} CPU with its helpers; "
        f"{outline_of(sweep).steps_per_trial} steps.",
        f"At once: {sweep.config.search.max_concurrent}; `autotune doctor` says how many fit.",
        *_company_lines(sweep),
        "First settings:",
        *(f"  {index}: {_setting_text(plan, index)}" for index in range(len(plan.first))),
        f"  the other {sweep.config.search.num_trials - len(plan.first)} depend on the results",
        _cost_text("At most", plan.at_most, unit),
    ]
    if plan.expected is not None:
        lines.append(_cost_text("Expected", plan.expected, unit))
    else:
        lines.append("Expected: no basis yet; known once a trial has finished.")
    if plan.training is not None:
        lines.append(_cost_text("Training alone", plan.training, unit))
    lines += _memory_lines(sweep, plan)
    lines += forecast_lines(plan.forecasts)
    if plan.remote_code:
        lines.append(
            f"Code of the model's repository is run: {', '.join(plan.remote_code)} = true in the "
            "base job."
        )
    else:
        lines.append("No code of a model's repository is run (trust_remote_code is off).")
    return "\n".join(lines)


def _company_lines(sweep: Sweep) -> list[str]:
    """Say what is known of trials that run beside others, where some will."""
    if sweep.config.search.max_concurrent == 1:
        return []
    if not sweep.config.verify.enabled:
        return ["  They may slow one another down: without a verification nothing will tell."]
    return ["  They may slow one another down: the verification's jobs run alone, and tell."]


def _memory_lines(sweep: Sweep, plan: Plan) -> list[str]:
    if not plan.memory:
        return ["Memory: nothing is predicted; the model's config.json is not here or is unknown."]
    lines = ["Memory on one device, a first guess before any trial (base job, largest setting):"]
    lines += [
        f"  {part.name}: {part.base_gib:.3g} GiB, {part.largest_gib:.3g} GiB"
        for part in plan.memory
    ]
    if sweep.config.resources.device == "gpu":
        share = leaves(sweep.base_config)[f"{job.ROLLOUT}.gpu_memory_utilization"]
        lines.append(f"  the rollout engine besides: {share} of the device")
    return lines


def _setting_text(plan: Plan, index: int) -> str:
    baseline, setting = plan.first[0], plan.first[index]
    if index == 0:
        return "the base job: " + _values_text(baseline, baseline)
    return _values_text(setting, {k: v for k, v in setting.items() if v != baseline[k]})


def _values_text(setting: Mapping[str, KnobValue], names: Mapping[str, KnobValue]) -> str:
    return ", ".join(f"{name}={setting[name]}" for name in names)


def _cost(sweep: Sweep, num_finished: int, trial_s: float, basis: str) -> Cost:
    search = sweep.config.search
    num_left = max(0, search.num_trials - num_finished)
    rounds = -(-num_left // search.max_concurrent)
    return Cost(
        num_trials=num_left,
        gpu_hours=num_left * trial_s * sweep.config.resources.num_ranks / 3600,
        wall_hours=rounds * trial_s / 3600,
        basis=basis,
    )


def _cost_text(word: str, cost: Cost, unit: str) -> str:
    return (
        f"{word}: {cost.gpu_hours:.3g} {unit}-hours, {cost.wall_hours:.3g} h of wall time for "
        f"{cost.num_trials} trials (from {cost.basis})."
    )
