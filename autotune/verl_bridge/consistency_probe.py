"""Does this setting compute what the baseline computes? A fixed mini-batch through the live actor.

Runs in verl's worker processes, outside every step: before the first one (:func:`run_probe`) and
after the last one (:func:`score_probe`). The mini-batch is the same in every trial of a sweep:
random tokens, advantages and a reference, from one seed. It goes through verl's own engine, its own
split into micro-batches and the job's own loss. The updates are taken back: weights, optimizer and
random numbers are afterwards what they were, to the bit.

Micro-batches are the job's, but at most half of a rank's part, so that gradients are accumulated.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from tensordict import TensorDict
from verl.plugin.platform import get_platform
from verl.utils import tensordict_utils as tu
from verl.workers.utils.padding import response_from_nested

from autotune.measure.gradients import UnknownSharding, sketch_gradients

SEED = 20_260_101
ROWS_PER_RANK = 8
"""Sequences for each rank; the ranks of one sequence-parallel group share theirs."""
MICRO_BATCHES = (4, 2, 1)
"""Sizes that a micro-batch of the probe may have."""
NUM_UPDATES = 2
REFERENCE_SCATTER_NATS = 0.1
"""Standard deviation of the reference's log-probabilities around the actor's: without a distance
between them, a KL loss has no gradient."""
_LENGTHS = (8, 17)
"""A prompt and a response have 8 to 16 tokens each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeSettings:
    """What the job's configuration says that neither engine nor loss knows."""

    temperature: float
    calculate_entropy: bool
    """Whether the actor's update computes the entropy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeOfRank:
    """What the probe found on one rank; log-probabilities are of the response tokens of the rank's
    own sequences, in nats."""

    start: list[float]
    """Before any update."""
    after: list[float]
    """After the updates."""
    after_again: list[float]
    """After the same updates with another micro-batch."""
    grad_sketch: list[float]
    """Sketch of the first update's gradient, of all ranks together."""
    grad_sketch_again: list[float]


def why_no_probe(worker: Any) -> str | None:
    """Say why an actor cannot be probed; None when it can.

    Args:
        worker: verl's TrainingWorker of the actor.
    """
    engine = worker.engine
    if worker.engine_config.strategy != "fsdp2":
        return f"an engine of the strategy {worker.engine_config.strategy} cannot be probed"
    if getattr(engine, "scaler", None) is not None:
        return "loss scaling (fp16) would remember the probe"
    if hasattr(worker.model_config.hf_config, "vision_config"):
        return "a model with images cannot be probed"
    return None


def run_probe(worker: Any, settings: ProbeSettings) -> ProbeOfRank | str:
    """Return what the probe finds on this rank, or why it finds nothing; all ranks call it."""
    reason = why_no_probe(worker)
    if reason is not None:
        return reason
    engine = worker.engine
    dp_rank, dp_size = engine.get_data_parallel_rank(), engine.get_data_parallel_size()
    rows = _all_rows(worker)[dp_rank::dp_size]
    with _random_numbers_kept():
        start = _score(worker, rows, settings)
        with _taken_back(engine):
            try:
                sketch = _update(worker, rows, start, settings, is_again=False)
            except UnknownSharding as error:
                return str(error)
            after = _score(worker, rows, settings)
        with _taken_back(engine):
            sketch_again = _update(worker, rows, start, settings, is_again=True)
            after_again = _score(worker, rows, settings)
    return ProbeOfRank(
        start=_flat(start),
        after=_flat(after),
        after_again=_flat(after_again),
        grad_sketch=sketch,
        grad_sketch_again=sketch_again,
    )


def score_probe(worker: Any, settings: ProbeSettings) -> list[float] | str:
    """Return the log-probability of each response token of the same sequences on every rank, or why
    there are none; all ranks call it."""
    reason = why_no_probe(worker)
    if reason is not None:
        return reason
    with _random_numbers_kept():
        return _flat(_score(worker, _all_rows(worker)[:ROWS_PER_RANK], settings))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """One sequence."""

    prompt: torch.Tensor
    response: torch.Tensor
    advantages: torch.Tensor
    reference_distance: torch.Tensor


def _all_rows(worker: Any) -> list[_Row]:
    """Return the sequences of all ranks, the same in every process and trial."""
    generator = torch.Generator().manual_seed(SEED)
    vocabulary = worker.model_config.hf_config.get_text_config().vocab_size

    def row() -> _Row:
        prompt, response = torch.randint(*_LENGTHS, (2,), generator=generator).tolist()
        return _Row(
            prompt=torch.randint(vocabulary, (prompt,), generator=generator),
            response=torch.randint(vocabulary, (response,), generator=generator),
            advantages=torch.randn(response, generator=generator),
            reference_distance=torch.randn(response, generator=generator) * REFERENCE_SCATTER_NATS,
        )

    return [row() for _ in range(ROWS_PER_RANK * dist.get_world_size())]


def _score(worker: Any, rows: Sequence[_Row], settings: ProbeSettings) -> torch.Tensor:
    """Return the log-probabilities of the responses, nested, on the CPU."""
    config = worker.engine_config
    batch = _batch(
        worker,
        rows,
        settings,
        is_again=False,
        micro_batch=config.infer_micro_batch_size_per_gpu,
        max_tokens=config.infer_max_token_len_per_gpu,
    )
    with worker.engine.eval_mode():
        output = worker.engine.infer_batch(batch)
    log_probs = output["model_output"]["log_probs"].cpu()
    return response_from_nested(log_probs, _nested([row.response for row in rows]))


def _update(
    worker: Any,
    rows: Sequence[_Row],
    start: torch.Tensor,
    settings: ProbeSettings,
    *,
    is_again: bool,
) -> list[float]:
    """Update the actor a few times on the same mini-batch; return the first gradient's sketch."""
    engine, config = worker.engine, worker.engine_config
    batch = _batch(
        worker,
        rows,
        settings,
        is_again=is_again,
        micro_batch=config.micro_batch_size_per_gpu,
        max_tokens=config.max_token_len_per_gpu,
    )
    batch["old_log_probs"] = start
    batch["ref_log_prob"] = _nested(
        [old + row.reference_distance for old, row in zip(start.unbind(), rows, strict=True)]
    )
    sketch: list[float] = []
    with engine.train_mode(), _full_learning_rate(engine.optimizer):
        for _ in range(NUM_UPDATES):
            engine.optimizer_zero_grad()
            engine.forward_backward_batch(batch.copy(), worker.loss_fn, forward_only=False)
            if not sketch:
                device = get_platform().current_device()
                sketch = sketch_gradients(engine.module.named_parameters(), device=device)
            engine.optimizer_step()
    return sketch


def _batch(
    worker: Any,
    rows: Sequence[_Row],
    settings: ProbeSettings,
    *,
    is_again: bool,
    micro_batch: int | None,
    max_tokens: int | None,
) -> TensorDict:
    """Return the mini-batch as verl's trainer would hand it to an engine."""
    sequences = [torch.cat([row.prompt, row.response]) for row in rows]
    mask = _nested([torch.ones_like(row.response) for row in rows])
    half = sum(map(len, sequences)) // (4 if is_again else 2)
    longest = max(map(len, sequences))
    return tu.get_tensordict(
        {
            "input_ids": _nested(sequences),
            "position_ids": _nested([torch.arange(len(sequence)) for sequence in sequences]),
            "prompts": _nested([row.prompt for row in rows]),
            "responses": _nested([row.response for row in rows]),
            "response_mask": mask,
            "loss_mask": mask,
            "advantages": _nested([row.advantages for row in rows]),
        },
        {
            "temperature": settings.temperature,
            "calculate_entropy": settings.calculate_entropy,
            "global_batch_size": ROWS_PER_RANK * dist.get_world_size(),
            "use_remove_padding": worker.model_config.get("use_remove_padding", False),
            "use_fused_kernels": worker.engine_config.use_fused_kernels,
            "use_dynamic_bsz": worker.engine_config.use_dynamic_bsz,
            "micro_batch_size_per_gpu": _micro_batch(micro_batch, is_again),
            "max_token_len_per_gpu": max(longest, min(max_tokens or half, half)),
        },
    )


def _micro_batch(size: int | None, is_again: bool) -> int:
    """Return the probe's micro-batch for the job's, and another one when asked again."""
    own = next((one for one in MICRO_BATCHES if one <= (size or 1)), 1)
    if not is_again:
        return own
    return own // 2 if own > 1 else 2


@contextmanager
def _taken_back(engine: Any) -> Iterator[None]:
    """Give the engine its weights back, and an optimizer that has seen nothing."""
    _reshard(engine)
    kept = [tensor.to("cpu", copy=True) for tensor in _local_parameters(engine)]
    try:
        yield
    finally:
        _reshard(engine)
        with torch.no_grad():
            for tensor, first in zip(_local_parameters(engine), kept, strict=True):
                tensor.copy_(first)
        engine.optimizer.state.clear()
        engine.module.zero_grad(set_to_none=True)
        # The first step must find the allocator as if nothing had been.
        get_platform().device_module.empty_cache()


def _reshard(engine: Any) -> None:
    """Drop unsharded copies, which stay after a forward pass where `reshard_after_forward` is off:
    they stand for the parameters, and would be used once more when those have changed."""
    for module in engine.module.modules():
        if hasattr(module, "reshard"):
            module.reshard()


def _local_parameters(engine: Any) -> Iterator[torch.Tensor]:
    """Iterate over this rank's part of the weights that are trained."""
    for parameter in engine.module.parameters():
        if not parameter.requires_grad:
            continue
        data = parameter.detach()
        yield data.to_local() if hasattr(data, "to_local") else data


@contextmanager
def _full_learning_rate(optimizer: Any) -> Iterator[None]:
    """Use the learning rate that the schedule starts from: a warm-up begins at 0."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = group.get("initial_lr", group["lr"])
    try:
        yield
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


@contextmanager
def _random_numbers_kept() -> Iterator[None]:
    device = get_platform().device_module
    host_state, device_state = torch.get_rng_state(), device.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(host_state)
        device.set_rng_state(device_state)


def _nested(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(list(tensors), layout=torch.jagged)


def _flat(nested: torch.Tensor) -> list[float]:
    return [float(value) for value in nested.values().tolist()]
