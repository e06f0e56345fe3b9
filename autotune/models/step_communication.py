"""How long a PPO step communicates on one rank, and how much of it no computation hides.

Runs in the driver; pure functions. A step is a row of phases, each on one engine, which
:mod:`autotune.models.overlap_timeline` plays, and the weight sync, which computes nothing.
Generation and reward, copies to and from the host, and the optimizer are left out: what is said
holds for the phases that train and score, and the weight sync.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.models.calibration import DTYPE_BYTES, Calibration
from autotune.models.model_shape import ModelShape, layers_of
from autotune.models.overlap_plan import Plan, Work, make_plan, retimed
from autotune.models.overlap_settings import OverlapSettings
from autotune.models.overlap_timeline import predict_update


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What one phase of a step asks of one engine, on every rank."""

    name: str
    """verl's."""
    shape: ModelShape
    has_head: bool
    """False for a critic."""
    settings: OverlapSettings
    reduce_dtype: str
    """torch's name of the dtype of gradients in a reduce-scatter."""
    wrapped_for: Work
    """The micro-batch that the engine was wrapped for."""
    work: Work
    """The phase's own micro-batch."""
    num_micro_batches: int
    """Of one mini-batch, or of the whole batch where nothing is trained."""
    num_mini_batches: int
    """One after the other, all epochs."""
    reduces_once: bool
    """Gradients are reduced after the last micro-batch of a mini-batch only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSync:
    """The actor's parameters on their way to the rollout."""

    shape: ModelShape
    dtype: str
    """torch's name of the dtype in which the shards lie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCommunication:
    """Predicted seconds of one step on one rank, without generation and reward."""

    communication_s: float
    """All collectives, hidden or not."""
    exposed_s: float
    """Those that no computation hides, weight sync included."""
    compute_s: float
    """All the rest: computation, and what it waits for launches."""

    @property
    def step_s(self) -> float:
        """The phases that train and score, and the weight sync."""
        return self.compute_s + self.exposed_s

    @property
    def exposed_ratio(self) -> float:
        """Exposed communication / :attr:`step_s`."""
        return self.exposed_s / self.step_s


def predict_step(
    phases: Sequence[Phase], sync: WeightSync | None, calibration: Calibration
) -> StepCommunication:
    """Return the times of one step.

    Args:
        phases: In any order: they do not overlap.
        sync: None where no weights go to the rollout.
        calibration: Of the ranks that run it.

    Raises:
        BadInputError: The calibration lacks a dtype that an engine computes in.
    """
    times = [_phase(phase, calibration) for phase in phases]
    sync_s = _sync_s(sync, calibration) if sync is not None else 0.0
    return StepCommunication(
        communication_s=sum(each.communication_s for each in times) + sync_s,
        exposed_s=sum(each.exposed_s for each in times) + sync_s,
        compute_s=sum(each.compute_s for each in times),
    )


def _phase(phase: Phase, calibration: Calibration) -> StepCommunication:
    plan = _plan(phase, calibration)
    # Without a backward pass nothing reshards what forward has kept: only the first gathers.
    gathers_once = not phase.work.trains and not phase.work.reshards
    played = 1 if gathers_once else phase.num_micro_batches
    times = predict_update(plan, num_micro_batches=played, reduces_once=phase.reduces_once)
    assert times is not None, "a plan with a calibration has times"
    count = phase.num_mini_batches
    return StepCommunication(
        communication_s=count * times.communication_s,
        exposed_s=count * times.exposed_s,
        compute_s=count * (times.step_s - times.exposed_s) * phase.num_micro_batches / played,
    )


def _plan(phase: Phase, calibration: Calibration) -> Plan:
    settings = dataclasses.replace(phase.settings, calibration=calibration)
    trains = phase.wrapped_for.trains
    root, layers = layers_of(
        phase.shape,
        parameter_bytes=DTYPE_BYTES[phase.work.dtype],
        gradient_bytes=DTYPE_BYTES[phase.reduce_dtype] if trains else 0,
        sequence_tokens=settings.sequence_tokens,
        has_head=phase.has_head,
    )
    plan = make_plan(root, layers, settings=settings, work=phase.wrapped_for)
    return retimed(plan, settings=settings, work=phase.work)


def _sync_s(sync: WeightSync, calibration: Calibration) -> float:
    """Return how long it takes to gather every entry of the state by itself."""
    shape, gather = sync.shape, calibration.all_gather
    tied = shape.embedding_parameters if shape.is_tied else 0
    total_bytes = (shape.num_parameters + tied) * DTYPE_BYTES[sync.dtype]
    return shape.num_tensors * gather.latency_s + total_bytes / gather.bandwidth_bytes_per_s
