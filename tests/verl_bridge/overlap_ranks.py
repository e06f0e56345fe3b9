"""Gloo ranks that build verl's real engines under many overlap plans and train a little model.

Run by test_overlap.py, once for all of its tests: importing verl takes longer than everything here.
Every case goes through the same two updates; what it did is written as JSON.
"""

import json
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity

NUM_LAYERS = 4


@dataclass(frozen=True, kw_only=True)
class Case:
    """One engine, and two updates of two micro-batches."""

    name: str
    overlap: dict[str, Any] | None
    """``wrap_policy.overlap``; None: the key is absent."""
    model: str = "tied"
    model_type: str = "language_model"
    engine: dict[str, Any] = field(default_factory=dict)
    """Further fields of verl's engine configuration."""
    model_config: dict[str, Any] = field(default_factory=dict)
    """Further fields of verl's model configuration."""
    batch: dict[str, Any] = field(default_factory=dict)
    """What the batch says beside its tensors: verl's workers put the job's settings there."""
    saves: bool = False
    """Whether a checkpoint is written after two updates, and a third update follows."""
    load_from: str | None = None
    """Case whose checkpoint is loaded; only the third update follows."""


def run(rank: int, cases: list[Case], folder: Path, num_ranks: int) -> None:
    """Run all cases in order on one rank."""
    os.environ.update(
        VERL_PLATFORM="cpu", RANK=str(rank), WORLD_SIZE=str(num_ranks), LOCAL_RANK=str(rank)
    )
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=num_ranks
    )
    if rank == 0:
        _save_models(folder)
    dist.barrier()
    for case in cases:
        result = _run_case(case, rank, folder)
        (folder / f"{case.name}.{rank}.json").write_text(json.dumps(result), encoding="utf-8")
        dist.barrier()
    dist.destroy_process_group()


def _save_models(folder: Path) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    for name, tied in (("tied", True), ("untied", False)):
        torch.manual_seed(0)
        config = Qwen2Config(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=NUM_LAYERS,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=tied,
        )
        Qwen2ForCausalLM(config).save_pretrained(folder / name)


def _run_case(case: Case, rank: int, folder: Path) -> dict[str, Any]:
    # A critic's head and adapters begin at random.
    torch.manual_seed(0)
    engine = make_engine(case, folder)
    engine.initialize()
    result: dict[str, Any] = {
        "plan": None if engine.overlap_plan is None else str(engine.overlap_plan),
        "on_host": None if engine.overlap_plan is None else engine.overlap_plan.work.on_host,
        "units": _units(engine.module),
    }
    if engine.engine_config.forward_only:
        with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as profiler:
            log_probs = _score(engine, rank, case)
        operators = _operators(profiler.profiler.kineto_results.events())
        return result | {"log_probs": log_probs, "operators": operators}
    if case.load_from is not None:
        engine.load_checkpoint(str(folder / "checkpoints" / case.load_from), del_local_after_load=0)
        return result | {"third_update": _update(engine, rank, 2, case)}
    result["entropy"] = _name_of(engine.compute_entropy_from_logits)
    first, result["schedule"], result["operators"] = _profiled_update(engine, rank, 0, case)
    result["updates"] = [first, _update(engine, rank, 1, case)]
    result["shards"] = _shards(engine.module)
    if case.saves:
        engine.save_checkpoint(str(folder / "checkpoints" / case.name))
        result["synchronised"] = _synchronised(engine)
        result["third_update"] = _update(engine, rank, 2, case)
    return result


def make_engine(case: Case, folder: Path) -> Any:
    """Build the engine as verl's TrainingWorker does, from verl's configuration classes."""
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
    from verl.workers.engine import EngineRegistry

    model = HFModelConfig(
        path=str(folder / case.model),
        load_tokenizer=False,
        override_config={"attn_implementation": "sdpa"},
        **{"enable_gradient_checkpointing": True, "use_remove_padding": True} | case.model_config,
    )
    model.model_type = case.model_type
    engine = FSDPEngineConfig(
        **{
            "strategy": "fsdp2",
            "wrap_policy": {} if case.overlap is None else {"overlap": case.overlap},
            "mixed_precision": {"param_dtype": "fp32"},
            "use_torch_compile": False,
            "use_dynamic_bsz": False,
            "micro_batch_size_per_gpu": 2,
            "infer_micro_batch_size_per_gpu": 2,
            "use_no_sync_for_gradient_accumulation": False,
        }
        | case.engine
    )
    return EngineRegistry.new(
        model_type=case.model_type,
        backend=engine.strategy,
        model_config=model,
        engine_config=engine,
        optimizer_config=FSDPOptimizerConfig(lr=1e-2, total_training_steps=10),
        checkpoint_config=CheckpointConfig(),
    )


def _batch(rank: int, step: int, case: Case) -> Any:
    from verl.utils import tensordict_utils as tu

    generator = torch.Generator().manual_seed(100 * step + rank)
    lengths = [9, 5, 7, 12]
    rows = [torch.randint(0, 64, (length,), generator=generator) for length in lengths]
    data = tu.get_tensordict(
        {
            "input_ids": _nested(rows),
            "position_ids": _nested([torch.arange(length) for length in lengths]),
            "loss_mask": _nested([torch.ones(length, dtype=torch.int64) for length in lengths]),
        }
    )
    settings = {
        "temperature": 1.0,
        "use_remove_padding": True,
        "use_dynamic_bsz": False,
        "micro_batch_size_per_gpu": 2,
        "use_fused_kernels": False,
    }
    tu.assign_non_tensor(data, **settings | case.batch)
    return data


def _nested(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def _loss(model_output: Any, data: Any, dp_group: Any = None) -> Any:
    from verl.workers.utils.losses import sft_loss

    if "values" in model_output:
        values = model_output["values"].values()
        return (values - 1.0).square().sum() / data["batch_num_tokens"] * data["dp_size"], {}
    loss, metrics = sft_loss(None, model_output, data, dp_group)
    if "entropy" in model_output:
        loss = loss - 0.01 * model_output["entropy"].values().mean()
    return loss, metrics


def _name_of(function: Any) -> str:
    compiled = "compiled " if hasattr(function, "_torchdynamo_orig_callable") else ""
    return f"{compiled}{function.__qualname__}"


def _update(engine: Any, rank: int, step: int, case: Case) -> list[float]:
    """Return the loss over both ranks and the gradient norm."""
    with engine.train_mode():
        output = engine.train_batch(_batch(rank, step, case), loss_function=_loss)
    loss = torch.tensor(sum(output["loss"]), dtype=torch.float64)
    dist.all_reduce(loss)
    # One rank of those that share a sequence reports.
    return [float(loss), float(output["metrics"].get("grad_norm", 0.0))]


def _score(engine: Any, rank: int, case: Case) -> list[float]:
    with engine.eval_mode():
        output = engine.infer_batch(_batch(rank, 0, case), loss_function=None)
    return [float(value) for value in output["model_output"]["log_probs"].values()]


def _shards(model: Any) -> dict[str, list[float]]:
    """Return this rank's part of every parameter, as sum and norm."""
    return {
        name: _summary(parameter.to_local()) for name, parameter in model.named_parameters()
    }


def _synchronised(engine: Any) -> dict[str, list[float]]:
    """Return what a rollout would receive, as sum and norm."""
    tensors, _ = engine.get_per_tensor_param(base_sync_done=True)
    return {name: _summary(tensor) for name, tensor in tensors}


def _summary(tensor: torch.Tensor) -> list[float]:
    return [float(tensor.detach().double().sum()), float(tensor.detach().double().norm())]


def _profiled_update(
    engine: Any, rank: int, step: int, case: Case
) -> tuple[list[float], list[list[str]], dict[str, int]]:
    """Run an update; return it, what FSDP2 did in order as pairs of kind and unit, and how often
    each operator ran."""
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as profiler:
        update = _update(engine, rank, step, case)
    # The raw events: turning them all into torch's Python objects takes longer than the update.
    events = profiler.profiler.kineto_results.events()
    schedule = []
    for event in sorted(events, key=lambda event: event.start_ns()):
        name, _, unit = event.name().partition(" ")
        if name in KINDS:
            schedule.append([KINDS[name], unit.strip("()")])
    return update, schedule, _operators(events)


def _operators(events: Any) -> dict[str, int]:
    return Counter(event.name() for event in events if event.name().startswith(OPERATORS))


OPERATORS = ("aten::", "c10d::")
KINDS = {
    "FSDP::all_gather": "gather",
    "FSDP::pre_forward": "forward",
    "FSDP::pre_backward": "backward",
    "FSDP::post_backward_reduce": "reduce",
}


def _units(model: Any) -> list[list[str]]:
    """Return the names of every FSDP2 unit's modules, the root's first."""
    from torch.distributed.fsdp import FSDPModule

    names = {id(module): name for name, module in model.named_modules()}
    states = [each._get_fsdp_state() for each in model.modules() if isinstance(each, FSDPModule)]
    units = {id(state): state._modules for state in states}
    return [[names[id(module)] for module in unit] for unit in units.values()]
