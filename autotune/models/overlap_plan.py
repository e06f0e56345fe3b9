"""Which layers share one all-gather, how far ahead it is issued, and how long each should take.

Runs in verl's workers when an engine is built, and anywhere else to predict; standard library only.
FSDP2 gathers the parameters of one unit at a time: in forward the root's first (what belongs to no
layer), then each layer's; in backward the root's, then the layers' from the last to the first. This
module merges consecutive layers into units and says how many units each gathers ahead. All times
are of one micro-batch on one rank.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.errors import BadInputError
from autotune.models.calibration import Calibration
from autotune.models.overlap_settings import OVERLAP, OverlapSettings

MAX_DERIVED_DEPTH = 4
"""Units that are gathered ahead at most where the depth is derived: beyond it, a link that is still
too slow is too slow altogether, and every further unit only costs memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One module that FSDP2 would wrap by itself."""

    name: str
    stack: str
    """Layers may share a unit when they are neighbours and of one stack; empty: never merged."""
    parameter_bytes: int
    """What an all-gather of the layer puts out, in the dtype that is communicated."""
    gradient_bytes: int
    """What a reduce-scatter of the layer takes in; 0 where nothing is trained."""
    forward_flops_per_token: float
    backward_flops_per_token: float
    """Recomputation not included."""
    num_kernels: int
    """Kernels that one forward pass launches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one micro-batch asks of an engine."""

    tokens: int
    """Tokens of one rank."""
    dtype: str
    """torch's name of the dtype of the matrix products."""
    trains: bool
    """False for a reference, which has no backward pass."""
    recomputes: bool
    """Gradient checkpointing: the backward pass computes the forward pass again."""
    reshards: bool
    """Parameters are freed after forward and gathered again for backward."""
    on_host: bool = False
    """The host computes itself, without an accelerator: launching takes it longer, and FSDP2 waits
    for every collective before it goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitTimes:
    """Predicted times of one unit and one micro-batch."""

    forward_s: float
    backward_s: float
    """With recomputation; 0 without a backward pass."""
    device_s: float
    """What of both is computation; the rest is waiting for launches."""
    all_gather_s: float
    """One all-gather."""
    backward_all_gather_s: float
    """0 where the parameters are still there."""
    reduce_scatter_s: float
    """Of a micro-batch whose gradients are reduced."""

    @property
    def backward_communication_s(self) -> float:
        return self.backward_all_gather_s + self.reduce_scatter_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Layers whose parameters are gathered together."""

    layers: tuple[Layer, ...]
    forward_prefetch_depth: int
    """Units after this one whose all-gather this one issues early; 0: FSDP2's own behaviour."""
    backward_prefetch_depth: int
    """The same for the units before it; 0: FSDP2's own behaviour, which is one."""
    times: UnitTimes | None
    """None without a calibration."""

    @property
    def parameter_bytes(self) -> int:
        return _parameter_bytes(self.layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Units in the order in which forward computes them; the root, which is gathered first in both
    directions, apart."""

    root: Unit
    units: tuple[Unit, ...]
    work: Work
    """What the units' times are of."""

    @property
    def num_layers(self) -> int:
        return sum(len(unit.layers) for unit in self.units)

    @property
    def all_units(self) -> tuple[Unit, ...]:
        """The units in the order in which forward gathers them."""
        return (self.root, *self.units)

    def __str__(self) -> str:
        largest = max(unit.parameter_bytes for unit in self.all_units)
        forward = max(unit.forward_prefetch_depth for unit in self.all_units)
        backward = max(unit.backward_prefetch_depth for unit in self.all_units)
        return (
            f"{self.num_layers} layers in {len(self.units)} units of at most {largest / 1e6:.1f} "
            f"MB, gathered up to {forward} ahead in forward, {backward or 1} in backward"
        )


def make_plan(
    root: Layer, layers: Sequence[Layer], *, settings: OverlapSettings, work: Work
) -> Plan:
    """Return the units, their prefetch depths and their predicted times.

    Args:
        root: What belongs to no layer (the final norm, tied embeddings).
        layers: In the order in which forward computes them, the root's excluded.
        settings: Thresholds and explicit depths.
        work: The micro-batch that the plan is made for.

    Raises:
        BadInputError: The settings need a time that cannot be predicted.
    """
    clock = _clock(settings, work)
    groups = _merge(layers, settings, clock)
    times = [clock.times(group) if clock else None for group in ([root], *groups)]
    forward, backward = _depths([(root,), *groups], times, settings, work)
    units = [
        Unit(
            layers=tuple(group),
            forward_prefetch_depth=forward[index],
            backward_prefetch_depth=backward[index],
            times=times[index],
        )
        for index, group in enumerate([(root,), *groups])
    ]
    return Plan(root=units[0], units=tuple(units[1:]), work=work)


def retimed(plan: Plan, *, settings: OverlapSettings, work: Work) -> Plan:
    """Return a plan's units as they are, with the times of another micro-batch.

    Args:
        plan: How the model is wrapped.
        settings: What the plan was made from.
        work: The micro-batch that runs on it.
    """
    clock = _clock(settings, work)

    def unit_at(unit: Unit) -> Unit:
        return dataclasses.replace(unit, times=clock.times(unit.layers) if clock else None)

    return Plan(root=unit_at(plan.root), units=tuple(map(unit_at, plan.units)), work=work)


@dataclass(frozen=True, slots=True)
class _Clock:
    """Turns bytes and operations into seconds."""

    calibration: Calibration
    work: Work
    flops_per_s: float

    def forward_s(self, layers: Sequence[Layer]) -> float:
        return sum(self._compute_s(layer, layer.forward_flops_per_token, 1) for layer in layers)

    def times(self, layers: Sequence[Layer]) -> UnitTimes:
        gathered = _parameter_bytes(layers)
        reduced = sum(layer.gradient_bytes for layer in layers) if self.work.trains else 0
        all_gather_s = self.calibration.all_gather.time_s(gathered) if gathered else 0.0
        return UnitTimes(
            forward_s=self.forward_s(layers),
            backward_s=self._backward_s(layers),
            device_s=self._device_s(layers),
            all_gather_s=all_gather_s,
            backward_all_gather_s=all_gather_s if self.work.trains and self.work.reshards else 0.0,
            reduce_scatter_s=self.calibration.reduce_scatter.time_s(reduced) if reduced else 0.0,
        )

    def _backward_s(self, layers: Sequence[Layer]) -> float:
        if not self.work.trains:
            return 0.0
        # A backward pass launches about two kernels for each of forward's.
        backward = sum(
            self._compute_s(layer, layer.backward_flops_per_token, 2) for layer in layers
        )
        return backward + self.forward_s(self._recomputed(layers))

    def _device_s(self, layers: Sequence[Layer]) -> float:
        if self.work.on_host:
            return self.forward_s(layers) + self._backward_s(layers)
        flops = sum(layer.forward_flops_per_token for layer in layers)
        if self.work.trains:
            flops += sum(layer.backward_flops_per_token for layer in layers)
            flops += sum(layer.forward_flops_per_token for layer in self._recomputed(layers))
        return flops * self.work.tokens / self.flops_per_s

    def _recomputed(self, layers: Sequence[Layer]) -> Sequence[Layer]:
        # Only layers of a stack are recomputed: the root and the embeddings are not checkpointed.
        return [layer for layer in layers if layer.stack] if self.work.recomputes else []

    def _compute_s(self, layer: Layer, flops_per_token: float, passes: int) -> float:
        """Return what the device needs, or the host to launch it, whichever is longer; on the host
        both."""
        device_s = flops_per_token * self.work.tokens / self.flops_per_s
        launch_s = passes * layer.num_kernels * self.calibration.launch_overhead_s
        return device_s + launch_s if self.work.on_host else max(device_s, launch_s)


def _clock(settings: OverlapSettings, work: Work) -> _Clock | None:
    settings.check_calibrated()
    calibration = settings.calibration
    if calibration is None:
        return None
    if work.dtype not in calibration.flops_per_s:
        raise BadInputError(
            f"{OVERLAP}.calibration.flops_per_s has no {work.dtype}, which the model computes in.",
            f"It has {', '.join(calibration.flops_per_s)}.",
        )
    return _Clock(calibration, work, calibration.flops_per_s[work.dtype])


def _parameter_bytes(layers: Sequence[Layer]) -> int:
    return sum(layer.parameter_bytes for layer in layers)


def _merge(
    layers: Sequence[Layer], settings: OverlapSettings, clock: _Clock | None
) -> list[tuple[Layer, ...]]:
    """Fill one unit after the other: a layer joins the unit before it while that is too small."""
    groups: list[tuple[Layer, ...]] = []
    for layer in layers:
        last = groups[-1] if groups else ()
        if last and _may_join(layer, last, settings) and _is_too_small(last, settings, clock):
            groups[-1] = (*last, layer)
        else:
            groups.append((layer,))
    return groups


def _may_join(layer: Layer, unit: Sequence[Layer], settings: OverlapSettings) -> bool:
    limit = settings.max_unsharded_bytes
    merged = _parameter_bytes([*unit, layer])
    # While one unit computes, the next one is being gathered.
    fits = limit == 0 or 2 * merged <= limit
    return fits and layer.stack != "" and layer.stack == unit[-1].stack


def _is_too_small(
    unit: Sequence[Layer], settings: OverlapSettings, clock: _Clock | None
) -> bool:
    if _parameter_bytes(unit) < settings.bucket_size:
        return True
    return clock is not None and clock.forward_s(unit) < settings.min_overlap_time_s


def _depths(
    groups: Sequence[Sequence[Layer]],
    times: Sequence[UnitTimes | None],
    settings: OverlapSettings,
    work: Work,
) -> tuple[list[int], list[int]]:
    """Return the forward and the backward depth of every unit, the root's first."""
    gathered = [_parameter_bytes(group) for group in groups]
    nothing = [0] * len(groups)
    forward = [settings.forward_prefetch_depth] * len(groups)
    backward = [settings.backward_prefetch_depth if work.trains else 0] * len(groups)
    known = [each for each in times if each is not None]
    if settings.overlap_threshold and len(known) == len(times):
        # The root computes last: its own computation hides nothing in forward.
        hides = [0.0, *(each.forward_s for each in known[1:])]
        costs = [each.all_gather_s for each in known]
        if not settings.forward_prefetch_depth:
            forward = _derive(costs, hides, gathered, settings)
        if not settings.backward_prefetch_depth and work.trains and work.reshards:
            # In backward the root computes first, then the last unit.
            order = [0, *range(len(groups) - 1, 0, -1)]
            derived = _derive(
                [known[index].backward_communication_s for index in order],
                [known[index].backward_s for index in order],
                [gathered[index] for index in order],
                settings,
            )
            by_unit = dict(zip(order, derived, strict=True))
            backward = [by_unit[index] for index in range(len(groups))]
    return forward, backward if work.trains and work.reshards else nothing


def _derive(
    costs: Sequence[float],
    hides: Sequence[float],
    gathered: Sequence[int],
    settings: OverlapSettings,
) -> list[int]:
    """Return how many units ahead each gathers, in the order in which they are computed.

    Args:
        costs: Communication time of each unit.
        hides: Computation time of each unit.
        gathered: Parameter bytes of each unit.
        settings: Threshold and memory limit.
    """
    wanted = [_distance(index, costs, hides, settings) for index in range(len(costs))]
    return [
        max(
            (
                ahead
                for ahead in range(1, min(MAX_DERIVED_DEPTH, len(costs) - 1 - index) + 1)
                if wanted[index + ahead] >= ahead
                and _fits(gathered[index : index + ahead + 1], settings)
            ),
            default=0,
        )
        for index in range(len(costs))
    ]


def _distance(
    index: int, costs: Sequence[float], hides: Sequence[float], settings: OverlapSettings
) -> int:
    """Return how many units before it a unit's communication must begin to stay below the
    threshold."""
    if costs[index] == 0:
        return 0
    computed_s = 0.0
    for ahead in range(1, index + 1):
        computed_s += hides[index - ahead]
        if costs[index] <= settings.overlap_threshold * computed_s:
            return ahead
    return index


def _fits(gathered: Sequence[int], settings: OverlapSettings) -> bool:
    limit = settings.max_unsharded_bytes
    return limit == 0 or len(gathered) <= 2 or sum(gathered) <= limit
