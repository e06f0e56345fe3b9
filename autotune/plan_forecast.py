"""What a sweep's base job and the ends of its knobs take: memory and communication, before anything
runs.

Runs in the driver; needs no Ray and no GPU. The links' speed is what was measured last for trials
of this size, else an assumption, which is named. Reads calibrations and the models' ``config.json``
and writes nothing.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.calibrate import CACHE_FOLDER
from autotune.config import Sweep
from autotune.errors import BadInputError
from autotune.knobs import KnobValue
from autotune.models.assumed_links import assumed_calibration, assumption_text, usual_link
from autotune.models.calibration import Calibration
from autotune.models.calibration_record import CalibrationRecord, read_record
from autotune.models.model_shape import ModelShape
from autotune.models.static_memory import peak_bytes
from autotune.models.step_communication import StepCommunication, predict_step
from autotune.report.text import plural
from autotune.store import CALIBRATION_FILE
from autotune.sweep import store_of
from autotune.verl_bridge import job
from autotune.verl_bridge.job import ACTOR, MODEL, Leaves
from autotune.verl_bridge.step_phases import (
    phases_of,
    roles_of,
    weight_sync_of,
    why_not_modelled,
)
from autotune.warm_start import model_config

DECIDE = (
    "ppo_micro_batch_size_per_gpu",
    "ppo_max_token_len_per_gpu",
    "log_prob_micro_batch_size_per_gpu",
    "log_prob_max_token_len_per_gpu",
    "critic_ppo_infer_max_token_len_per_gpu",
    "bucket_size",
    "min_overlap_time_s",
    "overlap_threshold",
    "forward_prefetch_depth",
    "backward_prefetch_depth",
    "forward_prefetch",
    "reshard_after_forward",
    "use_no_sync_for_gradient_accumulation",
    "enable_gradient_checkpointing",
    "param_offload",
    "optimizer_offload",
    "offload_policy",
)
"""Knobs by which a step's memory, its communication, or the computation that hides that changes."""

Setting = Mapping[str, KnobValue]


@dataclass(frozen=True, kw_only=True)
class Basis:
    """Where the speed of links and devices is from."""

    constants: Calibration
    text: str
    is_assumed: bool


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """One setting."""

    name: str
    memory_bytes: float | None
    """Peak on one device; None for an unknown model."""
    communication: StepCommunication | None
    absent: str
    """Why no communication is predicted, in words; empty where it is."""


@dataclass(frozen=True, kw_only=True)
class Forecasts:
    """The base job and the corners of the space."""

    basis: Basis | None
    """None where there are no links."""
    sequence_tokens: int
    """Length of the sequences that the figures are for."""
    base: Forecast
    corners: Sequence[Forecast]
    """One knob at an end of its domain each, then several at once; empty where nothing is predicted
    of the base job."""


def forecast(sweep: Sweep, basis: Basis | None) -> Forecasts:
    """Return what is predicted of a sweep's memory and communication.

    Args:
        sweep: The loaded sweep.
        basis: See :func:`basis_of`.
    """
    baseline = sweep.space.baseline()
    base = _forecast(sweep, baseline, "the base job", basis)
    corners: list[Forecast] = []
    if base.communication is not None or base.memory_bytes is not None:
        corners = list(_corners(sweep, base, basis))
    return Forecasts(
        basis=basis,
        sequence_tokens=job.longest_sequence(sweep.space.leaves(baseline)),
        base=base,
        corners=corners,
    )


def basis_of(
    sweep: Sweep, *, file: str | None, link: str | None, flops_per_s: float | None
) -> Basis | None:
    """Return the speed of a trial's links: the given one, else measured before, else assumed; None
    where a trial has one rank.

    Args:
        sweep: The loaded sweep.
        file: A calibration to take.
        link: An assumption to take, see :data:`autotune.models.assumed_links.ASSUMED_LINKS`.
        flops_per_s: Goes with an assumption.

    Raises:
        BadInputError: A calibration cannot be read, or is of another number of ranks.
    """
    resources = sweep.config.resources
    if resources.num_ranks == 1:
        return None
    if file is not None:
        if not Path(file).is_file():
            raise BadInputError(
                f"--calibration: there is no file {file}.", "`autotune calibrate` writes one."
            )
        record = read_record(Path(file))
        if record.constants.world_size != resources.num_ranks:
            raise BadInputError(
                f"--calibration: {file} was measured with {record.constants.world_size} ranks, and "
                f"a trial has {resources.num_ranks}.",
                "Collectives of another number of ranks take other times: calibrate with this one.",
            )
        return _measured(record, Path(file))
    if link is None and flops_per_s is None:
        found = _known(sweep)
        if found is not None:
            return _measured(*found)
    name = link or usual_link(device=resources.device, num_nodes=resources.nodes)
    return Basis(
        constants=assumed_calibration(
            name,
            device=resources.device,
            world_size=resources.num_ranks,
            flops_per_s=flops_per_s,
        ),
        text=assumption_text(name, device=resources.device, flops_per_s=flops_per_s),
        is_assumed=True,
    )


def _known(sweep: Sweep) -> tuple[CalibrationRecord, Path] | None:
    """Return the sweep's own calibration, else the latest of trials of this size on any cluster
    that this machine has swept on."""
    resources = sweep.config.resources
    own = store_of(sweep).folder / CALIBRATION_FILE
    if own.exists():
        return read_record(own), own
    folder = Path(sweep.config.output_dir).resolve() / CACHE_FOLDER
    records = []
    for path in folder.glob("*.json"):
        # A cache of other versions is nobody's mistake.
        with contextlib.suppress(BadInputError):
            records.append((read_record(path), path))
    fitting = [
        (record, path)
        for record, path in records
        if record.constants.world_size == resources.num_ranks
        and record.device == resources.device
        and record.num_nodes == resources.nodes
    ]
    return max(fitting, key=lambda found: found[0].measured_at, default=None)


def _measured(record: CalibrationRecord, path: Path) -> Basis:
    return Basis(
        constants=record.constants,
        text=(
            f"{plural(record.constants.world_size, 'rank')} on "
            f"{plural(record.num_nodes, 'node')}, {record.device_name}, "
            f"{record.measured_at} ({path})"
        ),
        is_assumed=False,
    )


def _forecast(sweep: Sweep, setting: Setting, name: str, basis: Basis | None) -> Forecast:
    leaves = sweep.space.leaves(setting)
    communication, absent = None, why_not_modelled(leaves)
    if absent is None:
        try:
            communication = _communication(sweep, leaves, basis)
        except BadInputError as error:
            # The model's files, or the calibration, have not what is needed of them.
            absent = error.message.rstrip(".")
    return Forecast(
        name=name,
        memory_bytes=peak_bytes(model_config(leaves), leaves),
        communication=communication,
        absent=absent or "",
    )


def _communication(sweep: Sweep, leaves: Leaves, basis: Basis | None) -> StepCommunication:
    assert basis is not None, "several ranks have links"
    shapes = {role: _shape(leaves, role) for role in roles_of(leaves)}
    replays = sweep.config.trial.replays_rollout
    sync = None if replays else weight_sync_of(leaves, shapes[ACTOR])
    return predict_step(phases_of(leaves, shapes), sync, basis.constants)


def _shape(leaves: Leaves, role: str) -> ModelShape:
    """Return a role's model.

    Raises:
        BadInputError: Nothing is known of it.
    """
    key = "critic.model.path" if role == "critic" else f"{MODEL}.path"
    config = model_config(leaves, key)
    if not config:
        raise BadInputError(f"{key} is {leaves[key]}, which is no folder with a config.json here")
    shape = ModelShape.of(config)
    if shape is None:
        raise BadInputError(f"{key} is {leaves[key]}, a model of a kind that is not modelled")
    return shape


def _corners(sweep: Sweep, base: Forecast, basis: Basis | None) -> Iterator[Forecast]:
    """Return every knob's ends, alone, then what the ends come to together."""
    baseline = sweep.space.baseline()
    ends: dict[str, dict[KnobValue, Forecast]] = {}
    for knob in (name for name in DECIDE if name in sweep.config.knobs):
        ends[knob] = {baseline[knob]: base}
        for value in _ends(sweep, knob):
            setting = {**baseline, knob: value}
            found = ends[knob][value] = _forecast(sweep, setting, f"{knob}={value}", basis)
            yield found
    for name, choose, value_of in _TOGETHER:
        whole = dict(baseline)
        for knob, found_of in ends.items():
            by_value = {value: value_of(found) for value, found in found_of.items()}
            known = {value: size for value, size in by_value.items() if size is not None}
            if known:
                whole[knob] = choose(known, key=lambda value: known[value])
        if whole != baseline and sweep.space.is_valid(whole):
            yield _forecast(sweep, whole, name, basis)


def _exposed_ratio(found: Forecast) -> float | None:
    return found.communication.exposed_ratio if found.communication is not None else None


def _memory(found: Forecast) -> float | None:
    return found.memory_bytes


_TOGETHER: Sequence[tuple[str, Callable[..., KnobValue], Callable[[Forecast], float | None]]] = (
    ("ends of least exposed share, together", min, _exposed_ratio),
    ("ends of most exposed share, together", max, _exposed_ratio),
    ("ends of least memory, together", min, _memory),
    ("ends of most memory, together", max, _memory),
)
"""Name of a corner -> which end of every knob it takes, and by what."""


def _ends(sweep: Sweep, knob: str) -> list[KnobValue]:
    """Return a knob's smallest and largest value that verl accepts and the base job has not."""
    domain, baseline = sweep.space.domain(knob), sweep.space.baseline()
    values = sorted(domain.values()) if domain.size is not None else list(domain.bounds())
    valid = [value for value in values if sweep.space.is_valid({**baseline, knob: value})]
    ends = dict.fromkeys([valid[0], valid[-1]]) if valid else {}
    return [value for value in ends if value != baseline[knob]]


def forecast_lines(found: Forecasts) -> list[str]:
    """Return the forecasts for the terminal."""
    if found.base.communication is None and found.base.memory_bytes is None:
        return [f"Baseline and corners: nothing is predicted: {found.base.absent}."]
    lines = ["Baseline and corners, predicted for one rank; communication is that of a step:"]
    lines.append(f"  {'':46}{'memory':>10}{'in all':>10}{'exposed':>10}{'share':>8}")
    lines += [_line(each) for each in (found.base, *found.corners)]
    lines.append("  Memory: the parts above that are held at once, without the rollout engine.")
    if found.base.communication is None:
        return [*lines, f"  Communication: nothing is predicted: {found.base.absent}."]
    assert found.basis is not None
    word = "ASSUMED" if found.basis.is_assumed else "measured"
    lines += [
        f"  Links and devices, {word}: {found.basis.text}.",
        f"  Sequences of {found.sequence_tokens} tokens, the longest that may occur: shorter ones "
        "hide less.",
        "  Share: exposed / predicted time of the phases that train and score and of the weight "
        "sync. Generation, copies",
        "  and the host's own work between kernels are not in that time: with such sequences the "
        "real share is smaller, most",
        "  of all for small models. Compare the settings with each other.",
    ]
    if found.basis.is_assumed:
        lines.append(
            "  `autotune calibrate` measures; --link and --flops-per-s assume something else, "
            "--calibration takes a file."
        )
    return lines


def _line(found: Forecast) -> str:
    memory, times = found.memory_bytes, found.communication
    line = f"  {found.name:46}" + f"{'-' if memory is None else _gib(memory):>10}"
    if times is None:
        return f"{line}{'-':>10}{'-':>10}{'-':>8}"
    return (
        f"{line}{_seconds(times.communication_s):>10}{_seconds(times.exposed_s):>10}"
        f"{100 * times.exposed_ratio:>6.1f} %"
    )


def _seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 100 else f"{value:.3g} s"


def _gib(size: float) -> str:
    return f"{size / 2**30:.3g} GiB"
