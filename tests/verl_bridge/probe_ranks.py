"""Two gloo ranks that build verl's real actor worker and send the probe through it.

Started by ``test_consistency_probe.py``; each case is the quickstart's job with other overrides.
"""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

NUM_RANKS = 2
FSDP1 = "fsdp1"
CASES: dict[str, tuple[str, ...]] = {
    "baseline": (),
    "micro_batch": ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",),
    "dynamic_batches": (
        "actor_rollout_ref.actor.use_dynamic_bsz=true",
        "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=true",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=512",
        "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=512",
    ),
    "padded_not_resharded": (
        "actor_rollout_ref.model.use_remove_padding=false",
        "actor_rollout_ref.actor.fsdp_config.reshard_after_forward=false",
    ),
    "bf16": ("+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=bf16",),
    FSDP1: (),
}


def _measured(overrides: list[str], *, is_fsdp1: bool) -> dict[str, Any]:
    import torch
    from verl.trainer.ppo.utils import need_critic  # noqa: F401  (loads verl's plug-ins)

    from autotune.verl_bridge.consistency_probe import ProbeSettings
    from autotune.verl_bridge.overrides import compose_base
    from autotune.verl_bridge.workers import TrialActorRolloutRefWorker

    config = compose_base("ppo_trainer", overrides)
    worker: Any = TrialActorRolloutRefWorker(config=config.actor_rollout_ref, role="actor")
    worker.init_model()
    module = worker.actor.engine.module
    if is_fsdp1:
        # torch's first FSDP wraps nothing on a CPU.
        worker.actor.engine_config = SimpleNamespace(strategy="fsdp")

    def state() -> list[torch.Tensor]:
        for part in module.modules():
            # What a forward pass gathered stands for the parameters until then.
            getattr(part, "reshard", lambda: None)()
        weights = [p.detach() for p in module.parameters()]
        local = [w.to_local() if hasattr(w, "to_local") else w for w in weights]
        return [*(tensor.clone() for tensor in local), torch.get_rng_state()]

    settings = ProbeSettings(temperature=1.0, calculate_entropy=False)
    before = state()
    found = worker.run_probe(settings)
    scores = worker.score_probe(settings)
    is_untouched = all(map(torch.equal, before, state()))
    is_untouched &= not worker.actor.engine.optimizer.state
    if isinstance(found, str):
        return {"reason": found, "score_reason": scores, "is_untouched": is_untouched}
    return {
        "start": found.start,
        "after": found.after,
        "after_again": found.after_again,
        "grad_sketch": found.grad_sketch,
        "grad_sketch_again": found.grad_sketch_again,
        "scores": scores,
        "again": worker.score_probe(settings),
        "is_untouched": is_untouched,
    }


def run(rank: int, folder: str, overrides: list[str]) -> None:
    """Run every case on one rank and write what was measured."""
    os.environ |= {
        "VERL_PLATFORM": "cpu",
        "OMP_NUM_THREADS": "1",
        "RANK": str(rank),
        "WORLD_SIZE": str(NUM_RANKS),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "0",
        "DIST_INIT_METHOD": f"file://{folder}/meeting",
    }
    # Values of one key may be given once only; a later one replaces the quickstart's.
    measured = {}
    for name, changes in CASES.items():
        changed = {change.split("=")[0] for change in changes}
        kept = [override for override in overrides if override.split("=")[0] not in changed]
        measured[name] = _measured([*kept, *changes], is_fsdp1=name == FSDP1)
    Path(folder, f"{rank}.json").write_text(json.dumps(measured))
