"""verl's training workers, extended: gloo on the CPU, measurements, and a rebuild with another
configuration in place.

Runs in verl's worker processes, one for each rank. The CPU classes only start the process group
before verl would (verl's backend string names the device "cpu" twice, which torch refuses;
utils/distributed.py:89). The trial's classes also record k(r,t) of the KL consistency constraint
and the peak memory, and can profile a step; what verl computes is untouched.
"""

import os
from collections.abc import Sequence
from typing import Any

import ray
import torch
import torch.distributed as dist
from verl.plugin.platform import get_platform
from verl.single_controller.base.decorator import Dispatch, register
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker
from verl.workers.utils.padding import no_padding_2_padding

from autotune.verl_bridge.consistency_probe import (
    ProbeOfRank,
    ProbeSettings,
    run_probe,
    score_probe,
)
from autotune.verl_bridge.first_state import (
    DEFAULT_SEED,
    FirstState,
    RandomState,
    batch_values,
    end_groups,
    free,
    give_back_host_memory,
    groups_of,
    limit_collectives,
)
from autotune.verl_bridge.job_processes import end_tree
from autotune.verl_bridge.peak_memory import DeviceSampler, free_bytes, settled
from autotune.verl_bridge.rollout_restart import Server
from autotune.verl_bridge.startup_times import StartupTimes
from autotune.verl_bridge.step_report import RankStep
from autotune.verl_bridge.worker_phases import METER, in_phase

STARTUP = StartupTimes()
"""Parts of the start in this process: ``engines`` (of all roles), in it ``model_load`` and ``fsdp``
(wrapping and sharding); ``servers`` (from the last engine to the first step: rollout servers, agent
loops, the consistency probe, first weights)."""

ROLLOUT_END_S = 10.0
"""How long processes of ended rollout servers may take to go by themselves."""

# verl makes the members of Dispatch at run time.
_on_all_ranks = register(dispatch_mode=getattr(Dispatch, "ONE_TO_ALL"))


def _init_gloo() -> None:
    if get_platform().device_name != "cpu":
        return
    # verl takes flash-attn's cross entropy wherever it can be imported, and that asks for a device.
    os.environ["VERL_DISABLE_FLASH_ATTN_CE"] = "1"
    if dist.is_initialized():
        return
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group(
        backend="gloo",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        init_method=os.environ.get("DIST_INIT_METHOD"),
    )


class GlooTrainingWorker(TrainingWorker):
    """verl's worker of one model, on gloo."""

    def __init__(self, config: Any) -> None:
        _init_gloo()
        super().__init__(config)


class GlooActorRolloutRefWorker(ActorRolloutRefWorker):
    """verl's worker of actor, rollout and reference, on gloo."""

    actor_worker_cls = GlooTrainingWorker
    ref_worker_cls = GlooTrainingWorker


class _KLConsistency:
    """The actor's loss function, which also sums old_log_prob - log_prob over the first mini-batch
    of an update.

    See ``kl_std`` in :mod:`autotune.metrics`. Called by verl once for each micro-batch.
    """

    def __init__(self, loss_fn: Any, worker: "TrialTrainingWorker") -> None:
        self._loss_fn = loss_fn
        self._worker = worker
        self.reset()

    def reset(self) -> None:
        self._sum_nats = 0.0
        self._num_tokens = 0

    def mean_nats(self) -> float | None:
        """k(r,t), or None when the rank had no response token."""
        return self._sum_nats / self._num_tokens if self._num_tokens else None

    def __call__(self, model_output: Any, data: Any, dp_group: Any = None) -> Any:
        if self._worker.num_updates == 0:
            self._add(model_output, data)
        return self._loss_fn(model_output=model_output, data=data, dp_group=dp_group)

    @torch.no_grad()
    def _add(self, model_output: Any, data: Any) -> None:
        log_prob = no_padding_2_padding(model_output["log_probs"].detach(), data)
        padded = data.select("response_mask", "old_log_probs").to_padded_tensor()
        mask = padded["response_mask"].to(bool)
        difference = (padded["old_log_probs"] - log_prob).masked_fill(~mask, 0.0)
        self._sum_nats += float(difference.double().sum())
        self._num_tokens += int(mask.sum())


class TrialTrainingWorker(GlooTrainingWorker):
    """A worker of one model that counts its optimizer steps, can be put back to its first state and
    be rebuilt from another configuration."""

    engine: Any
    engine_config: Any
    num_updates = 0
    _first: FirstState | None = None

    @_on_all_ranks
    def begin_trial(self, collective_timeout_s: float, keeps_first: bool) -> None:
        """Remember the first state if it will be asked for, and bound what the engine's collectives
        may wait."""
        if keeps_first and self._first is None and not self.engine_config.forward_only:
            self._first = FirstState(self.engine)
        limit_collectives(groups_of(self.engine), collective_timeout_s)

    @_on_all_ranks
    def put_back(self, batch_values: dict[str, Any]) -> None:
        """Return to the first state, with other values of what is read with every batch."""
        for name, value in batch_values.items():
            setattr(self.engine_config, name, value)
        if not self.engine_config.forward_only:
            assert self._first is not None
            self._first.restore(self.engine)

    @_on_all_ranks
    def release(self) -> None:
        """Give up the engine with its memory and process groups."""
        groups = groups_of(self.engine)
        self.engine = self._first = None
        free(groups)

    # Phases of the critic; inside a phase of the actor's worker they are part of that.
    infer_batch = in_phase("values", GlooTrainingWorker.infer_batch)
    train_mini_batch = in_phase("update_critic", GlooTrainingWorker.train_mini_batch)

    @_on_all_ranks
    def rebuild(self, config: Any) -> None:
        """Make the engine anew from ``config`` (verl's TrainingWorkerConfig), as in a fresh process
        whose first model this is; :meth:`release` came before."""
        torch.manual_seed(DEFAULT_SEED)
        TrialTrainingWorker.__init__(self, config)
        self.reset()

    @_on_all_ranks
    def reset(self) -> None:
        """Build the engine, with its parts timed."""
        engine = self.engine
        engine._build_module = STARTUP.timed("model_load", engine._build_module)
        engine._build_fsdp_module = STARTUP.timed("fsdp", engine._build_fsdp_module)
        STARTUP.timed("engines", super().reset)()

    def train_batch(self, data: Any) -> Any:
        output = super().train_batch(data)
        self.num_updates += 1
        return output


def _scoring_phase(batch: Any) -> str:
    """With LoRA the actor without its adapter is the reference (trainer_base.py
    ``_compute_ref_log_prob``)."""
    extra_info = getattr(batch, "extra_info", {})
    return "ref" if extra_info.get("no_lora_adapter") else "old_log_prob"


class TrialActorRolloutRefWorker(GlooActorRolloutRefWorker):
    """A worker of actor, rollout and reference that measures."""

    actor: Any
    ref: Any
    rollout: Any
    role: str
    _consistency: Any
    _profiler: Any
    _trace: Any
    _sampler: DeviceSampler | None = None
    _random: RandomState
    _Worker__dispatch_dp_rank: dict[str, int]
    _Worker__collect_dp_rank: dict[str, bool]

    actor_worker_cls = TrialTrainingWorker
    ref_worker_cls = TrialTrainingWorker

    compute_log_prob = in_phase(_scoring_phase, GlooActorRolloutRefWorker.compute_log_prob)
    compute_ref_log_prob = in_phase("ref", GlooActorRolloutRefWorker.compute_ref_log_prob)
    update_actor = in_phase("update_actor", GlooActorRolloutRefWorker.update_actor)
    update_weights = in_phase("update_weights", GlooActorRolloutRefWorker.update_weights)

    @_on_all_ranks
    def init_model(self) -> None:
        super().init_model()
        STARTUP.begin("servers")
        self._consistency = _KLConsistency(self.actor.loss_fn, self.actor)
        self.actor.set_loss_fn(self._consistency)
        self._random = RandomState()

    @_on_all_ranks
    def run_probe(self, settings: ProbeSettings) -> ProbeOfRank | str:
        """Send the probe through the actor, see :mod:`autotune.verl_bridge.consistency_probe`."""
        return run_probe(self.actor, settings)

    @_on_all_ranks
    def score_probe(self, settings: ProbeSettings) -> list[float] | str:
        """Score the same sequences as every other rank."""
        return score_probe(self.actor, settings)

    @_on_all_ranks
    def begin_trial(self, collective_timeout_s: float, keeps_first: bool) -> None:
        """Remember the first state, bound the collectives, and forget all peaks of memory.

        Called when all engines of this process stand, the critic's included.
        """
        self.actor.begin_trial(collective_timeout_s, keeps_first)
        if self.ref is not None:
            self.ref.begin_trial(collective_timeout_s, keeps_first)
        limit_collectives({dist.group.WORLD}, collective_timeout_s)
        give_back_host_memory()
        get_platform().device_module.reset_peak_memory_stats()
        if self._sampler is None:
            self._sampler = DeviceSampler()

    @_on_all_ranks
    def put_back(self, config: Any) -> None:
        """Return to the first state of a job that runs ``config`` (the section
        ``actor_rollout_ref``), which differs only in values that are read with every batch."""
        actor, reference = batch_values(config)
        self.config = config
        self.actor.put_back(actor)
        if self.ref is not None:
            self.ref.put_back(reference)
        self._random.restore()

    @_on_all_ranks
    def release(self) -> None:
        """Give up actor, reference and rollout adapter with their memory and process groups."""
        groups = groups_of(self.actor.engine)
        if self.ref is not None:
            groups |= groups_of(self.ref.engine)
        groups |= set(self.rollout.device_mesh.get_all_groups())
        self.actor = self.ref = self.rollout = self._consistency = None
        free(groups)

    @_on_all_ranks
    def rebuild(self, config: Any, is_first: bool) -> None:
        """Make actor, reference and rollout adapter anew from ``config`` (the section
        ``actor_rollout_ref``); :meth:`release` came before.

        The process, its process group and its imports stay; weights, optimizer state and random
        numbers start where a fresh process starts.

        Args:
            config: The section.
            is_first: Whether the process has no critic, whose building draws random numbers first.
        """
        if is_first:
            torch.manual_seed(DEFAULT_SEED)
        # init_model registers its meshes once more, which verl refuses
        # (single_controller/base/worker.py:157).
        self._Worker__dispatch_dp_rank.clear()
        self._Worker__collect_dp_rank.clear()
        self.config = config
        self.init_model()

    @_on_all_ranks
    def rebuild_adapter(self, config: Any) -> None:
        """Make the rollout adapter anew from ``config`` (the section ``actor_rollout_ref``), and
        keep the engines."""
        groups = set(self.rollout.device_mesh.get_all_groups())
        self.rollout = None
        end_groups(groups)
        self.config = config
        # verl builds what its role names.
        role, self.role = self.role, "rollout"
        try:
            super().init_model()
        finally:
            self.role = role
        STARTUP.begin("servers")

    @_on_all_ranks
    def await_end_of(self, servers: Sequence[Server]) -> list[str]:
        """See the processes of ended servers on this node gone; return those that stay, in
        words."""
        own_node = ray.get_runtime_context().get_node_id()
        keys = [key for one in servers if one.node_id == own_node for key in one.processes]
        return end_tree(keys, ROLLOUT_END_S)

    @_on_all_ranks
    def await_free_memory(self) -> int:
        """Return how much of the device is free once no more comes back from ended processes."""
        # A host's memory is back with the process.
        return free_bytes() if get_platform().device_name == "cpu" else settled(free_bytes)

    @_on_all_ranks
    def begin_step(self, profile: bool) -> None:
        """Forget the last step's measurements; record this step with the profiler if asked."""
        STARTUP.begin(None)
        self._consistency.reset()
        self.actor.num_updates = 0
        self._profiler = self._trace = None
        METER.begin_step()
        assert self._sampler is not None
        self._sampler.begin_step()
        if profile:
            from autotune.measure.clocks import measure_clock_offset_us
            from autotune.measure.kineto import StepProfiler

            self._profiler = StepProfiler(
                dist.get_rank(), clock_offset_us=measure_clock_offset_us()
            )
            dist.barrier()
            self._profiler.start()

    @_on_all_ranks
    def startup_s(self) -> dict[str, float]:
        """Return what the parts of the last start took, once."""
        return STARTUP.take()

    @_on_all_ranks
    def stop_profiler(self) -> None:
        """End the recording; the weights go to the rollout next, timed as a whole."""
        self._trace = self._profiler.stop()

    @_on_all_ranks
    def end_step(self) -> RankStep:
        """Return this rank's measurements of the step."""
        METER.note_peaks()
        assert self._sampler is not None
        return RankStep(
            k_nats=self._consistency.mean_nats(),
            peak_bytes=max(METER.reserved_bytes - self._kept_bytes(), self._sampler.peak_bytes),
            device_bytes=get_platform().device_module.mem_get_info()[1],
            node_id=ray.get_runtime_context().get_node_id(),
            allocated_bytes=METER.allocated_bytes,
            reserved_bytes=METER.reserved_bytes,
            alloc_retries=METER.alloc_retries(),
            phases=METER.phases,
            trace=self._trace,
        )

    def _kept_bytes(self) -> int:
        """Return host memory that exists only because trials start live: on the CPU it counts."""
        first = self.actor._first
        is_cpu = get_platform().device_name == "cpu"
        return first.num_bytes if is_cpu and first is not None else 0
