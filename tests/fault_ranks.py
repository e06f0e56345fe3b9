"""Gloo ranks that train a small FSDP2 model, each time with another fault.

Started by ``test_faults.py``. What is measured is what a trial measures: k(r,t) of each step's
first mini-batch, the sketch of a fixed mini-batch's gradient, the KL from the start after two
updates on it, and every rank's score of the same sequences at the end.
"""

import json
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from autotune.measure.gradients import sketch_gradients
from autotune.measure.kl import kl_from_start

VOCABULARY, WIDTH, NUM_LAYERS, LENGTH = 61, 48, 3, 12
ROWS_PER_RANK = 8
NUM_STEPS = 3
LEARNING_RATE = 0.02


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """How one run differs from the plain one."""

    micro_batch: int = 4
    is_one_unit: bool = False
    """Whether all layers share one collective."""
    is_replicated: bool = False
    """Whether each rank holds the whole model."""
    cancelling: bool = False
    """Whether the ranks' gradients nearly cancel, as late in a training."""
    reduce_dtype: torch.dtype | None = None
    first_loss_scale: float = 1.0
    """Factor of the first micro-batch's loss."""
    perturbs_rank_1: bool = False
    keeps_own_gradient: bool = False
    """Whether rank 1 takes its own gradient for the reduced one."""
    scores_in_bf16: bool = False
    """Whether old_log_prob comes from another precision than log_prob."""


SCENARIOS = {
    "plain": Scenario(),
    "other_micro_batch": Scenario(micro_batch=2),
    "one_unit": Scenario(is_one_unit=True),
    "replicated": Scenario(is_replicated=True),
    "perturbed_rank": Scenario(is_replicated=True, perturbs_rank_1=True),
    "own_gradient": Scenario(keeps_own_gradient=True),
    "scaled_loss": Scenario(first_loss_scale=2.0),
    "bf16_reduction": Scenario(reduce_dtype=torch.bfloat16),
    "bf16_scores": Scenario(scores_in_bf16=True),
    "cancelling": Scenario(cancelling=True),
    "cancelling_bf16_reduction": Scenario(cancelling=True, reduce_dtype=torch.bfloat16),
}


class _Model(torch.nn.Module):
    """A language model without attention: enough for parameters that are gathered and reduced."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(
                torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()
            )
            for _ in range(NUM_LAYERS)
        )
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the log-probability of each token but the first."""
        hidden = self.embedding(tokens[:, :-1])
        for layer in self.layers:
            hidden = hidden + layer(hidden)
        logits = self.head(hidden).float()
        return logits.log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)


class _OwnGradient:
    """A reduce-scatter after which this rank holds its own part, not the sum."""

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, **_: Any
    ) -> None:
        dist.reduce_scatter_tensor(output_tensor, input_tensor, op=op, group=group)
        output_tensor.copy_(input_tensor.chunk(group.size())[group.rank()])


def _built(scenario: Scenario) -> Any:
    torch.manual_seed(1)
    model: Any = _Model()
    num_ranks = dist.get_world_size()
    if scenario.is_replicated:
        mesh = init_device_mesh("cpu", (num_ranks, 1), mesh_dim_names=("replicate", "shard"))
    else:
        mesh = init_device_mesh("cpu", (num_ranks,))
    policy = MixedPrecisionPolicy(reduce_dtype=scenario.reduce_dtype)
    if not scenario.is_one_unit:
        for layer in model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    if dist.get_rank() == 1 and scenario.perturbs_rank_1:
        _perturb(model)
    if dist.get_rank() == 1 and scenario.keeps_own_gradient:
        for module in (*model.layers, model):
            module.set_custom_reduce_scatter(_OwnGradient())
    return model


@torch.no_grad()
def _perturb(model: Any) -> None:
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        local = parameter.to_local()
        local += 1e-3 * torch.randn(local.shape, generator=generator)


def _rows(scenario: Scenario, *, seed: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens and advantages of one rank's part of a mini-batch."""
    # Where gradients cancel, an odd rank has the data of the one before it.
    own_seed = seed + 100 * (rank - rank % 2 if scenario.cancelling else rank)
    generator = torch.Generator().manual_seed(own_seed)
    tokens = torch.randint(VOCABULARY, (ROWS_PER_RANK, LENGTH), generator=generator)
    advantages = torch.randn(ROWS_PER_RANK, LENGTH - 1, generator=generator)
    if scenario.cancelling and rank % 2:
        noise = torch.Generator().manual_seed(seed + 7)
        advantages = -advantages + 5e-3 * torch.randn(advantages.shape, generator=noise)
    return tokens, advantages


@torch.no_grad()
def _score(model: Any, tokens: torch.Tensor, micro_batch: int) -> torch.Tensor:
    return torch.cat([model(part) for part in tokens.split(micro_batch)])


def _accumulate(
    model: Any, scenario: Scenario, tokens: torch.Tensor, advantages: torch.Tensor, old: Any
) -> torch.Tensor:
    """Add up the gradient of one mini-batch; return log_prob as the update sees it."""
    seen = []
    num_ranks = dist.get_world_size()
    num_tokens = advantages.numel() * num_ranks
    parts = zip(*(x.split(scenario.micro_batch) for x in (tokens, advantages, old)), strict=True)
    for index, (part, advantage, old_part) in enumerate(parts):
        log_prob = model(part)
        seen.append(log_prob.detach())
        ratio = (log_prob - old_part).exp()
        # FSDP takes the mean over ranks.
        loss = -(ratio * advantage).sum() / num_tokens * num_ranks
        (loss * (scenario.first_loss_scale if index == 0 else 1.0)).backward()
    return torch.cat(seen)


def _measured(scenario: Scenario) -> dict[str, Any]:
    rank = dist.get_rank()
    model = _built(scenario)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    tokens, advantages = _rows(scenario, seed=11, rank=rank)
    start = _score(model, tokens, scenario.micro_batch)
    sketch: list[float] = []
    for _ in range(2):
        optimizer.zero_grad()
        _accumulate(model, scenario, tokens, advantages, start)
        sketch = sketch or sketch_gradients(model.named_parameters())
        optimizer.step()
    after = _score(model, tokens, scenario.micro_batch)
    k_nats = [_step(model, optimizer, scenario, seed=20 + step) for step in range(NUM_STEPS)]
    common, _ = _rows(scenario, seed=31, rank=0)
    return {
        "grad_sketch": sketch,
        "probe_kl": [kl_from_start(start.flatten().tolist(), after.flatten().tolist())],
        "k_nats": k_nats,
        "scores": _score(model, common, scenario.micro_batch).flatten().tolist(),
    }


def _step(model: Any, optimizer: Any, scenario: Scenario, *, seed: int) -> float:
    """Run one step of PPO; return k(r,t)."""
    tokens, advantages = _rows(scenario, seed=seed, rank=dist.get_rank())
    precision = (
        torch.autocast("cpu", dtype=torch.bfloat16) if scenario.scores_in_bf16 else nullcontext()
    )
    with precision:
        old = _score(model, tokens, scenario.micro_batch)
    optimizer.zero_grad()
    log_prob = _accumulate(model, scenario, tokens, advantages, old)
    optimizer.step()
    return float((old - log_prob).double().mean())


def run(rank: int, folder: str, num_ranks: int) -> None:
    """Run every scenario on one rank and write what was measured."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=num_ranks
    )
    measured = {name: _measured(scenario) for name, scenario in SCENARIOS.items()}
    Path(folder, f"{rank}.json").write_text(json.dumps(measured))
    dist.barrier()
    dist.destroy_process_group()
