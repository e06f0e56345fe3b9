"""How long an update takes under an overlap plan, and how much of its communication shows.

Runs anywhere; standard library only. Plays one mini-batch through two streams, as FSDP2 issues its
work: computation in order; communication in order, each all-gather no earlier than the unit that
issues it begins to compute, each reduce-scatter no earlier than its unit's backward pass ends. A
unit waits for its parameters. Without an accelerator nothing runs beside anything. The host is
taken to run ahead of the device, as it does unless launching is what takes long, which the units'
times contain: then the device computes in a part of a unit's time only, and what is communicated in
the rest is exposed, as a profiler sees it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.models.overlap_plan import Plan, Unit, UnitTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateTimes:
    """Predicted times of one mini-batch on one rank."""

    step_s: float
    compute_s: float
    """What the device computes."""
    communication_s: float
    exposed_s: float
    """Communication that no computation hides."""


def predict_update(
    plan: Plan, *, num_micro_batches: int, reduces_once: bool
) -> UpdateTimes | None:
    """Return the times of one mini-batch; None where the plan has no calibration.

    Args:
        plan: The plan of the engine that is updated.
        num_micro_batches: Micro-batches whose gradients add up.
        reduces_once: Gradients are reduced after the last micro-batch only.
    """
    root = plan.root.times
    times = [unit.times for unit in plan.units]
    known = [each for each in times if each is not None]
    if root is None or len(known) < len(times):
        return None
    streams = _Streams()
    for index in range(num_micro_batches):
        reduces = not reduces_once or index == num_micro_batches - 1
        _forward(streams, plan, root, known)
        _backward(streams, plan, root, known, reduces=reduces)
    busy_s = streams.compute_s
    step_s = max(streams.computed_until_s, streams.link_free_s)
    if plan.work.on_host:
        step_s = busy_s + streams.communication_s
    compute_s = num_micro_batches * sum(each.device_s for each in (root, *known))
    stalled_s = step_s - busy_s
    beside_s = streams.communication_s - stalled_s
    return UpdateTimes(
        step_s=step_s,
        compute_s=compute_s,
        communication_s=streams.communication_s,
        exposed_s=stalled_s + (beside_s * (1 - compute_s / busy_s) if busy_s else 0.0),
    )


class _Streams:
    """The two streams of a rank, as points in time."""

    def __init__(self) -> None:
        self.computed_until_s = 0.0
        self.link_free_s = 0.0
        self.compute_s = 0.0
        self.communication_s = 0.0

    def communicate(self, duration_s: float, *, not_before_s: float) -> float:
        """Put a collective on the link; return when it ends."""
        if duration_s == 0:
            return not_before_s
        self.link_free_s = max(self.link_free_s, not_before_s) + duration_s
        self.communication_s += duration_s
        return self.link_free_s

    def compute(self, duration_s: float, *, not_before_s: float) -> float:
        """Put a unit's computation behind the last one; return when it begins."""
        begins_s = max(self.computed_until_s, not_before_s)
        self.computed_until_s = begins_s + duration_s
        self.compute_s += duration_s
        return begins_s


def _forward(streams: _Streams, plan: Plan, root: UnitTimes, times: Sequence[UnitTimes]) -> None:
    # The root begins without computing: its own computation is the last.
    begun_s = streams.communicate(root.all_gather_s, not_before_s=streams.computed_until_s)
    depths = [_ahead(unit.forward_prefetch_depth) for unit in plan.all_units]
    _run(
        streams,
        gathers=[each.all_gather_s for each in times],
        computes=[each.forward_s for each in times],
        reduces=[0.0] * len(times),
        depths=depths,
        begun_s=begun_s,
    )
    streams.compute(root.forward_s, not_before_s=0.0)


def _backward(
    streams: _Streams, plan: Plan, root: UnitTimes, times: Sequence[UnitTimes], *, reduces: bool
) -> None:
    ready_s = streams.communicate(
        root.backward_all_gather_s, not_before_s=streams.computed_until_s
    )
    begun_s = streams.compute(root.backward_s, not_before_s=ready_s)
    units: list[Unit] = [plan.root, *reversed(plan.units)]
    order = list(reversed(times))
    _run(
        streams,
        gathers=[each.backward_all_gather_s for each in order],
        computes=[each.backward_s for each in order],
        reduces=[each.reduce_scatter_s if reduces else 0.0 for each in order],
        depths=[_ahead(unit.backward_prefetch_depth) for unit in units],
        begun_s=begun_s,
    )
    if reduces:
        streams.communicate(root.reduce_scatter_s, not_before_s=streams.computed_until_s)


def _ahead(depth: int) -> int:
    # FSDP2 by itself has the next unit's all-gather on the link while a unit computes.
    return max(depth, 1)


def _run(
    streams: _Streams,
    *,
    gathers: Sequence[float],
    computes: Sequence[float],
    reduces: Sequence[float],
    depths: Sequence[int],
    begun_s: float,
) -> None:
    """Play the units of one direction.

    Args:
        streams: The rank.
        gathers: All-gather time of each unit.
        computes: Computation time of each unit.
        reduces: Reduce-scatter time of each unit.
        depths: Units that are gathered ahead: by the root, then by each unit.
        begun_s: When the root began.
    """
    ready_s: list[float] = []
    for place, depth in enumerate(depths):
        for target in range(len(ready_s), min(place + depth, len(gathers))):
            ready_s.append(streams.communicate(gathers[target], not_before_s=begun_s))
        if place < len(gathers):
            begun_s = streams.compute(computes[place], not_before_s=ready_s[place])
            # The next unit's early gathers come before this unit's gradients.
            follow = min(place + 1 + depths[place + 1], len(gathers))
            for target in range(len(ready_s), follow):
                ready_s.append(streams.communicate(gathers[target], not_before_s=begun_s))
            streams.communicate(reduces[place], not_before_s=streams.computed_until_s)
