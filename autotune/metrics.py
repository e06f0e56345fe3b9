"""The catalogue of every number that a trial stores: name, unit, better direction, definition.

Runs in every process. This is the only place where a metric is defined; reports print these texts.
A changed definition is a new name, never a silent edit. A number that could not be measured is
None with a reason, never 0.
"""

from dataclasses import dataclass
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


_ALL = (
    Metric(
        name="throughput_tokens_per_s_per_gpu",
        unit="tokens/s/GPU",
        better=Direction.HIGHER,
        definition="prompt + response tokens of the step / (step wall time x number of ranks); "
        "median over measured steps. The step's wall time includes weight sync and "
        "leaves out validation and profiled steps.",
        absent_when="no measured step finished",
        source="verl perf/throughput",
    ),
    Metric(
        name="step_s",
        unit="s",
        better=Direction.LOWER,
        definition="wall time of one PPO step; median over measured steps",
        absent_when="no measured step finished",
        source="verl timing_s/step",
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
        name="kl_std",
        unit="nats",
        better=Direction.LOWER,
        definition="k(r,t) = mean over rank r's response tokens in the first mini-batch of "
        "measured step t of (old_log_prob - log_prob), taken before the policy moves; "
        "standard deviation (denominator n) over all (r,t)",
        absent_when="no measured step updated the actor",
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
        name="kl_to_reference",
        unit="nats",
        better=Direction.NEITHER,
        definition="KL of the policy to the reference that verl puts into the loss, or into the "
        "reward when the loss has none; mean over response tokens, median over measured"
        " steps",
        absent_when="the job has no reference policy",
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
        definition="peak reserved bytes of the device / device memory; maximum over ranks and "
        "steps. Without an accelerator: peak resident set size summed over the node's "
        "ranks / memory of the node",
        absent_when="no step finished",
        source="torch allocator (accelerator), getrusage (CPU)",
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

KL_PER_RANK = "autotune/kl_per_rank"
"""Step metric of verl's workers: k(r,t) of every rank, a list in nats; see ``kl_std``."""
PEAK_MEMORY = "autotune/peak_memory_ratio"
"""Step metric of verl's workers, see ``peak_memory_ratio``."""

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
