"""The catalogue of every number that a trial stores: name, unit, better direction, definition.

Runs in every process. This is the only place where a metric is defined; reports print these texts.
A changed definition is a new name, never a silent edit. A number that could not be measured is
None with a reason, never 0.
"""

from dataclasses import dataclass, replace
from enum import Enum


class Direction(Enum):
    """Which way is better; NEITHER for numbers that only describe."""

    HIGHER = "higher"
    LOWER = "lower"
    NEITHER = "neither"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """Definition of one stored number."""

    name: str
    unit: str
    better: Direction
    definition: str
    """Formula with its denominator, and how it is reduced over tokens, steps and ranks."""
    absent_when: str
    """When the value is None."""
    source: str


PHASES = (
    "gen",
    "reward",
    "old_log_prob",
    "ref",
    "values",
    "adv",
    "update_critic",
    "update_actor",
    "update_weights",
)
"""verl's ``timing_s/*`` phases of one step, in the order in which they run."""

UPDATE_ONLY_PHASES = ("old_log_prob", "ref", "values", "adv", "update_critic", "update_actor")
"""Phases that run where the rollout is replayed (``trial.fidelity: update``)."""

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "other")
"""What a collective does, as in :class:`autotune.measure.traces.Kind`."""

_ALL = (
    Metric(
        name="throughput_tokens_per_s_per_gpu",
        unit="tokens/s/GPU",
        better=Direction.HIGHER,
        definition="prompt + response tokens of the step / (step wall time x number of ranks); "
        "median over measured steps. The step's wall time includes weight sync and "
        "leaves out validation and profiled steps.",
        absent_when="no measured step finished, or its rollout was replayed",
        source="verl perf/throughput",
    ),
    Metric(
        name="step_s",
        unit="s",
        better=Direction.LOWER,
        definition="wall time of one PPO step; median over measured steps",
        absent_when="no measured step finished, or its rollout was replayed",
        source="verl timing_s/step",
    ),
    Metric(
        name="update_only_tokens_per_s_per_gpu",
        unit="update-only tokens/s/GPU",
        better=Direction.HIGHER,
        definition="prompt + response tokens of the step / (update_only_s x number of ranks); "
        "median over measured steps. No throughput of a step: generation and weight sync are left "
        "out, whether they ran or not",
        absent_when="no measured step finished",
        source="verl perf/total_num_tokens, timing_s",
    ),
    Metric(
        name="update_only_s",
        unit="s",
        better=Direction.LOWER,
        definition="wall time of the phases that train in one PPO step, added up: "
        f"{', '.join(UPDATE_ONLY_PHASES)}; median over measured steps",
        absent_when="no measured step finished",
        source="verl timing_s",
    ),
    Metric(
        name="startup_s",
        unit="s",
        better=Direction.LOWER,
        definition="wall time from the start of the trial's verl process to the start of its first"
        " step",
        absent_when="the job did not reach its first step",
        source="trial clock",
    ),
    Metric(
        name="exposed_comm_ratio",
        unit="ratio",
        better=Direction.LOWER,
        definition="per rank over one profiled step: length of (union of collective intervals "
        "minus union of compute intervals, waiting for later ranks left out) plus "
        "weight-sync time, divided by the step's wall time; maximum over ranks, median "
        "over profiled steps",
        absent_when="no step was profiled, or the profiler recorded no events",
        source="PyTorch profiler in verl's workers",
    ),
    Metric(
        name="exposed_wait_ratio",
        unit="ratio",
        better=Direction.LOWER,
        definition="per rank over one profiled step: exposed collective time in which the rank "
        "only waits for a later one to arrive, divided by the step's wall time; maximum"
        " over ranks, median over profiled steps",
        absent_when="as exposed_comm_ratio",
        source="PyTorch profiler in verl's workers",
    ),
    Metric(
        name="comm_ratio",
        unit="ratio",
        better=Direction.LOWER,
        definition="per rank over one profiled step: union of collective intervals (hidden or not,"
        " waiting left out) plus weight-sync time, divided by the step's wall time; "
        "maximum over ranks, median over profiled steps",
        absent_when="as exposed_comm_ratio",
        source="PyTorch profiler in verl's workers",
    ),
    Metric(
        name="comm_overlap_ratio",
        unit="ratio",
        better=Direction.HIGHER,
        definition="1 - exposed collective time / union of collectives, weight sync left out; "
        "minimum over ranks, median over profiled steps",
        absent_when="as exposed_comm_ratio, or there was no communication",
        source="PyTorch profiler in verl's workers",
    ),
    Metric(
        name="comm_to_compute_ratio",
        unit="ratio",
        better=Direction.NEITHER,
        definition="union of collectives / union of compute; maximum over ranks, median over "
        "profiled steps",
        absent_when="as exposed_comm_ratio, or there was no compute",
        source="PyTorch profiler in verl's workers",
    ),
    Metric(
        name="idle_ratio",
        unit="ratio",
        better=Direction.LOWER,
        definition="per rank over one profiled step: time in which the rank neither computes nor is"
        " in a collective, divided by the step's wall time; maximum over ranks, median over"
        " profiled steps. Generation runs in other processes, so the rank is idle then",
        absent_when="as exposed_comm_ratio",
        source="PyTorch profiler in verl's workers",
    ),
    Metric(
        name="compute_imbalance_ratio",
        unit="ratio",
        better=Direction.LOWER,
        definition="over one profiled step: largest over mean of the ranks' compute unions, minus 1"
        "; median over profiled steps",
        absent_when="as comm_to_compute_ratio",
        source="PyTorch profiler in verl's workers",
    ),
    Metric(
        name="profiler_s",
        unit="s",
        better=Direction.LOWER,
        definition="wall time of ending a recording and reading its events; maximum over ranks, "
        "median over profiled steps. Outside the recorded time",
        absent_when="as exposed_comm_ratio",
        source="clock of verl's workers",
    ),
    Metric(
        name="profiler_slowdown_ratio",
        unit="ratio",
        better=Direction.LOWER,
        definition="recorded time of a profiled step with its weight sync, median over profiled "
        "steps, divided by step_s, minus 1. What it costs to record; steps differ in their "
        "tokens, so values near 0 may be negative",
        absent_when="no step was profiled or none measured",
        source="clock of verl's workers, verl timing_s",
    ),
    Metric(
        name="kl_std",
        unit="nats",
        better=Direction.LOWER,
        definition="k(r,t) = mean over rank r's response tokens in the first mini-batch of "
        "measured step t of (old_log_prob - log_prob), taken before the policy moves; "
        "standard deviation (denominator n) over all (r,t)",
        absent_when="no measured step updated the actor, or old_log_prob is the rollout's "
        "(rollout_correction.bypass_mode): its difference is that of two engines",
        source="verl's PPO loss inputs in every worker",
    ),
    Metric(
        name="kl_bias",
        unit="nats",
        better=Direction.LOWER,
        definition="absolute value of the mean of k(r,t) over ranks and measured steps",
        absent_when="as kl_std",
        source="verl's PPO loss inputs in every worker",
    ),
    Metric(
        name="rank_divergence",
        unit="nats",
        better=Direction.LOWER,
        definition="at the trial's end every rank scores the same fixed sequences with its live "
        "actor; largest difference between two ranks in the log-probability of one response token."
        " Copies of one model must agree: more than 1e-6 means that ranks have drifted apart",
        absent_when="the trial did not end, has one rank, or its engine cannot be probed",
        source="probe in verl's workers",
    ),
    Metric(
        name="probe_kl",
        unit="nats",
        better=Direction.NEITHER,
        definition="before the first step: KL of the actor to its own start on fixed sequences, "
        "after a few updates on them that are then taken back. Mean over response tokens of exp(d) "
        "- d - 1, d = log-probability at the start minus that after the updates",
        absent_when="the trial did not start, or its engine cannot be probed",
        source="probe in verl's workers",
    ),
    Metric(
        name="kl_drift",
        unit="nats",
        better=Direction.LOWER,
        definition="absolute difference between the trial's probe_kl and the baseline's: settings "
        "that agree between ranks and still train otherwise. The baseline's own value is the noise "
        "floor: its probe_kl against that of a second run with another micro-batch",
        absent_when="the trial or the baseline has no probe_kl, or the trial ended first",
        source="records of the trial and of the baseline",
    ),
    Metric(
        name="grad_cosine",
        unit="ratio",
        better=Direction.HIGHER,
        definition="cosine between the actor's gradient on a fixed mini-batch before the first step"
        " and the baseline's, both as seeded linear sketches of all ranks' shards. The baseline's "
        "own value is the noise floor: its gradient against a second one with another micro-batch",
        absent_when="the trial or the baseline has no sketch, or the trial ended first",
        source="records of the trial and of the baseline",
    ),
    Metric(
        name="grad_deviation",
        unit="ratio",
        better=Direction.LOWER,
        definition="1 - grad_cosine, exact near 0; the form in which it can be limited. A "
        "consistency above 99.5 % is a limit of 0.005",
        absent_when="as grad_cosine",
        source="records of the trial and of the baseline",
    ),
    Metric(
        name="kl_to_reference",
        unit="nats",
        better=Direction.NEITHER,
        definition="KL of the policy to the reference that verl puts into the loss, or into the "
        "reward when the loss has none; mean over response tokens, median over measured"
        " steps",
        absent_when="the job has no reference policy, or the rollout was replayed: its tokens are "
        "the first policy's",
        source="verl actor/kl_loss, actor/reward_kl_penalty",
    ),
    Metric(
        name="reward_mean",
        unit="reward",
        better=Direction.NEITHER,
        definition="mean score over the step's sequences; mean over measured steps",
        absent_when="no measured step finished",
        source="verl critic/score/mean",
    ),
    Metric(
        name="mfu_ratio",
        unit="ratio",
        better=Direction.HIGHER,
        definition="model FLOPs of the actor update / (its time x device peak FLOP/s x ranks); "
        "median over measured steps",
        absent_when="verl knows no peak FLOP/s for the device",
        source="verl perf/mfu/actor",
    ),
    Metric(
        name="peak_memory_ratio",
        unit="ratio",
        better=Direction.LOWER,
        definition="most bytes in use on the device at once, by whatever process, / device memory; "
        "maximum over ranks and steps that were not profiled. Without an accelerator: peak "
        "resident set size summed over the node's ranks / memory of the node",
        absent_when="no step finished",
        source="the device's free memory, sampled, and torch's allocator (accelerator), kernel's "
        "high-water mark (CPU)",
    ),
    Metric(
        name="peak_reserved_gib",
        unit="GiB",
        better=Direction.LOWER,
        definition="peak bytes that the rank's allocator held of its device; maximum over ranks "
        "and steps that were not profiled. Without an accelerator: peak resident set size",
        absent_when="no step finished",
        source="torch allocator (accelerator), kernel's high-water mark (CPU)",
    ),
    Metric(
        name="peak_allocated_gib",
        unit="GiB",
        better=Direction.LOWER,
        definition="peak bytes of live tensors on the rank's device; maximum over ranks and steps "
        "that were not profiled. Without an accelerator: as peak_reserved_gib",
        absent_when="no step finished",
        source="torch allocator (accelerator), kernel's high-water mark (CPU)",
    ),
    Metric(
        name="alloc_retries",
        unit="count",
        better=Direction.LOWER,
        definition="times that the allocator found no room, freed its cache and tried again: the "
        "step is slow and close to running out of memory; sum over ranks, maximum over steps",
        absent_when="no step finished, or there is no accelerator",
        source="torch allocator",
    ),
    Metric(
        name="gpu_seconds",
        unit="GPU s",
        better=Direction.LOWER,
        definition="what the trial cost: ranks held x wall time, start-up and tear-down included",
        absent_when="never",
        source="trial clock",
    ),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}
"""What every trial's record holds: a number, or None with a reason."""

COMMUNICATION = (
    "exposed_comm_ratio",
    "exposed_wait_ratio",
    "comm_ratio",
    "comm_overlap_ratio",
    "comm_to_compute_ratio",
    "idle_ratio",
    "compute_imbalance_ratio",
)
"""Metrics of profiled steps, and of their phases."""
MEMORY = ("peak_allocated_gib", "peak_reserved_gib")
"""Metrics of a rank's memory, and of its phases."""


def phase_metric(phase: str, name: str) -> str:
    """Return the name of a metric of one phase: ``s``, or one of COMMUNICATION or MEMORY."""
    return f"phase_{phase}_{name}"


def _of_phases() -> list[Metric]:
    times = [
        Metric(
            name=phase_metric(phase, "s"),
            unit="s",
            better=Direction.LOWER,
            definition=f"wall time of the phase {phase}; median over measured steps",
            absent_when="the phase did not run",
            source=f"verl timing_s/{phase}",
        )
        for phase in PHASES
    ]
    parts = [
        replace(
            METRICS[name],
            name=phase_metric(phase, name),
            definition=f"as {name}, of the phase {phase} in the workers alone: where that says "
            "step, the phase, without weight sync",
            absent_when=f"as {name}, or the phase did not run",
        )
        for phase in PHASES
        for name in (*COMMUNICATION, *MEMORY)
    ]
    return times + parts


def _of_kinds() -> list[Metric]:
    times = [
        Metric(
            name=f"comm_{kind}_s",
            unit="s",
            better=Direction.LOWER,
            definition=f"union of the transfers of {kind} over one profiled step, waiting left out,"
            " on the rank that has most; median over profiled steps",
            absent_when="the kind did not occur",
            source="PyTorch profiler in verl's workers",
        )
        for kind in KINDS
    ]
    bandwidths = [
        Metric(
            name=f"comm_{kind}_bus_gb_per_s",
            unit="GB/s",
            better=Direction.HIGHER,
            definition=f"bus bytes of {kind} over their transfer time, each summed over collectives"
            " and ranks (1e9 bytes; bus bytes as in nccl-tests); median over profiled steps",
            absent_when="the kind did not occur, or sizes or arrivals are not known",
            source="PyTorch profiler and flight recorder in verl's workers",
        )
        for kind in KINDS
        if kind != "other"
    ]
    return times + bandwidths


DETAILS: dict[str, Metric] = {metric.name: metric for metric in (*_of_phases(), *_of_kinds())}
"""What a trial's record holds beside METRICS where the phase ran or the kind occurred."""


def describe(name: str) -> Metric:
    """Return the definition of a metric of METRICS or DETAILS; KeyError for any other name."""
    return METRICS[name] if name in METRICS else DETAILS[name]


WHOLE_STEP = {
    "update_only_tokens_per_s_per_gpu": "throughput_tokens_per_s_per_gpu",
    "update_only_s": "step_s",
}
"""Metric of the phases that train -> the same of a whole step."""
ABSENT_IN_REPLAY = (*WHOLE_STEP.values(), "kl_to_reference")
"""Metrics that a trial does not have where its rollout was replayed."""

STEP_PREFIX = "autotune/"
"""What a step's metric of ours begins with; the rest is the trial's metric that it becomes."""

STEP_KEYS = {
    "throughput_tokens_per_s_per_gpu": "perf/throughput",
    "step_s": "timing_s/step",
    **{name: STEP_PREFIX + name for name in WHOLE_STEP},
}
"""Trial's metric -> the step's metric whose median over measured steps it is."""

KL_PER_RANK = "autotune/kl_per_rank"
"""Step metric of verl's workers: k(r,t) of every rank, a list in nats; see ``kl_std``."""
PEAK_MEMORY = "autotune/peak_memory_ratio"
"""Step metric of verl's workers, see ``peak_memory_ratio``."""
GRAD_SKETCH = "autotune/grad_sketch"
"""First step: sketch of the probe's gradient, a list; see ``grad_cosine``."""
GRAD_SKETCH_AGAIN = "autotune/grad_sketch_again"
"""First step: the same gradient with another micro-batch."""
PROBE_KL_AGAIN = "autotune/probe_kl_again"
"""First step: ``probe_kl`` with another micro-batch."""
PROFILED_STEP = "autotune/profiled_step_s"
"""Profiled step: recorded time with its weight sync; see ``profiler_slowdown_ratio``."""
