"""Which phases of a PPO step run on which engine with how many micro-batches, from a job's leaves.

Runs in the driver; pure functions. What the job does not settle by itself, the length of sequences,
is taken as the longest that may occur, unless an engine's overlap settings say one.
"""

import dataclasses
import math
from collections.abc import Mapping

from autotune.models.model_shape import ModelShape
from autotune.models.overlap_plan import Work
from autotune.models.step_communication import Phase, WeightSync
from autotune.verl_bridge import job
from autotune.verl_bridge.job import ACTOR, MODEL, REF, ROLLOUT, Leaves
from autotune.verl_bridge.overlap_rules import ENGINES, overlap_settings
from autotune.verl_bridge.rules import CRITIC_TOKENS, CRITIC_TOKENS_DEFAULT, padded_sequences

_DTYPES = {
    **dict.fromkeys(("16", "fp16", "float16"), "float16"),
    **dict.fromkeys(("32", "fp32", "float32"), "float32"),
    **dict.fromkeys(("bf16", "bfloat16"), "bfloat16"),
}
"""verl's names of a dtype (verl/utils/torch_dtypes.py) -> torch's."""

Shapes = Mapping[str, ModelShape]
"""Role -> its model."""


def roles_of(leaves: Leaves) -> list[str]:
    """Return the roles that have an engine of their own."""
    roles = [ACTOR]
    roles += [REF] if job.has_reference_engine(leaves) else []
    roles += ["critic"] if job.has_critic(leaves) else []
    return roles


def why_not_modelled(leaves: Leaves) -> str | None:
    """Return what makes a job's communication one that is not modelled, in words; None if it is."""
    ranks = job.num_ranks(leaves)
    if ranks == 1:
        return "there is one rank, so nothing is communicated"
    if job.trains_adapter(leaves):
        return "the job trains an adapter (LoRA), whose small gradients are not modelled"
    for role in roles_of(leaves):
        strategy = leaves[f"{role}.strategy"]
        if strategy != "fsdp2":
            return f"{role}.strategy is {strategy}, and only fsdp2 is modelled"
        size = leaves.get(f"{ENGINES[role]}.fsdp_size", -1)
        if size not in (-1, ranks):
            return (
                f"{ENGINES[role]}.fsdp_size is {size} of {ranks} ranks, and only parameters that "
                "are sharded over all ranks are modelled"
            )
        parallel = job.sequence_parallel_size(leaves, role)
        if parallel > 1:
            return f"{role} splits sequences over {parallel} ranks, which is not modelled"
    return None


def phases_of(leaves: Leaves, shapes: Shapes) -> list[Phase]:
    """Return the phases that communicate on FSDP2's units.

    Args:
        leaves: A job that :func:`why_not_modelled` has nothing against.
        shapes: Of every role in :func:`roles_of`.
    """
    actor = _Engine(leaves, ACTOR, shapes[ACTOR])
    update = actor.micro_batches(
        dynamic=bool(leaves[f"{ACTOR}.use_dynamic_bsz"]),
        tokens=leaves.get(f"{ACTOR}.ppo_max_token_len_per_gpu"),
        sequences=leaves.get(f"{ACTOR}.ppo_micro_batch_size_per_gpu"),
        of_sequences=job.mini_batch_sequences(leaves, ACTOR),
    )
    phases = [actor.update("update_actor", update)]
    if job.recomputes_old_log_prob(leaves):
        phases.append(actor.scoring("old_log_prob", actor.scored(ROLLOUT), wrapped_for=update))
    if job.has_reference_engine(leaves):
        reference = _Engine(leaves, REF, shapes[REF])
        scored = reference.scored(REF)
        phases.append(reference.scoring("ref", scored, wrapped_for=scored, trains=False))
    if job.has_critic(leaves):
        phases += _critic_phases(leaves, shapes["critic"])
    return phases


def _critic_phases(leaves: Leaves, shape: ModelShape) -> list[Phase]:
    critic = _Engine(leaves, "critic", shape)

    def micro_batches(of_sequences: int) -> "_MicroBatches":
        # verl's V1 trainer batches the critic by tokens, with one budget for all.
        return critic.micro_batches(
            dynamic=True,
            tokens=job.number_or(leaves, CRITIC_TOKENS, CRITIC_TOKENS_DEFAULT),
            sequences=None,
            of_sequences=of_sequences,
        )

    update = micro_batches(job.mini_batch_sequences(leaves, "critic"))
    scored = micro_batches(padded_sequences(leaves))
    return [
        critic.update("update_critic", update),
        critic.scoring("values", scored, wrapped_for=update),
    ]


def weight_sync_of(leaves: Leaves, shape: ModelShape) -> WeightSync:
    """Return what a step's weight sync gathers: every parameter as the actor stores it."""
    stored = leaves.get(f"{ENGINES[ACTOR]}.model_dtype", "fp32")
    return WeightSync(shape=shape, dtype=_DTYPES[str(stored)])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _MicroBatches:
    tokens: int
    """Of one, on one rank."""
    count: int


class _Engine:
    """One role's engine as its section of the configuration describes it."""

    def __init__(self, leaves: Leaves, role: str, shape: ModelShape) -> None:
        self._leaves, self._role, self._shape = leaves, role, shape
        self._section = ENGINES[role]
        settings = overlap_settings(leaves, role)
        longest = settings.sequence_tokens or job.longest_sequence(leaves)
        if leaves.get(f"{self._section}.forward_prefetch", False):
            settings = settings.with_forward_prefetch()
        self._settings = dataclasses.replace(settings, sequence_tokens=longest)
        self._ranks = job.data_parallel_size(leaves, role)

    def micro_batches(
        self, *, dynamic: bool, tokens: object, sequences: object, of_sequences: int
    ) -> _MicroBatches:
        """Return how one rank's part of some sequences is cut.

        Args:
            dynamic: By tokens, not by sequences.
            tokens: Budget of one micro-batch.
            sequences: Size of one micro-batch.
            of_sequences: Sequences over all ranks.
        """
        longest, own = self._settings.sequence_tokens, max(1, of_sequences // self._ranks)
        if dynamic:
            assert isinstance(tokens, int), "verl's rules ask for a budget"
            # A micro-batch holds whole sequences.
            sequences = max(1, tokens // longest)
        assert isinstance(sequences, int), "verl's rules ask for a size"
        size = min(sequences, own)
        return _MicroBatches(tokens=size * longest, count=math.ceil(own / size))

    def scored(self, section: str) -> _MicroBatches:
        """Return how one rank's part of a step's batch is scored, by the keys of a section."""
        return self.micro_batches(
            dynamic=bool(self._leaves[f"{section}.log_prob_use_dynamic_bsz"]),
            tokens=self._leaves.get(f"{section}.log_prob_max_token_len_per_gpu"),
            sequences=self._leaves.get(f"{section}.log_prob_micro_batch_size_per_gpu"),
            of_sequences=padded_sequences(self._leaves),
        )

    def update(self, name: str, batches: _MicroBatches) -> Phase:
        """Return a phase that trains."""
        mini = job.mini_batch_sequences(self._leaves, self._role)
        epochs = job.number_or(self._leaves, f"{self._role}.ppo_epochs", 1)
        work = self._work(batches, trains=True)
        return dataclasses.replace(
            self._phase(name, work, wrapped_for=work, num_micro_batches=batches.count),
            num_mini_batches=max(1, padded_sequences(self._leaves) // mini) * epochs,
        )

    def scoring(
        self, name: str, batches: _MicroBatches, *, wrapped_for: _MicroBatches, trains: bool = True
    ) -> Phase:
        """Return a phase that scores only, on an engine that may train in another one."""
        return self._phase(
            name,
            self._work(batches, trains=False),
            wrapped_for=self._work(wrapped_for, trains=trains),
            num_micro_batches=batches.count,
        )

    def _phase(
        self, name: str, work: Work, *, wrapped_for: Work, num_micro_batches: int
    ) -> Phase:
        once = f"{self._section}.use_no_sync_for_gradient_accumulation"
        return Phase(
            name=name,
            shape=self._shape,
            has_head=self._role != "critic",
            settings=self._settings,
            reduce_dtype=self._dtype("reduce_dtype", "fp32"),
            wrapped_for=wrapped_for,
            work=work,
            num_micro_batches=num_micro_batches,
            num_mini_batches=1,
            reduces_once=bool(self._leaves.get(once, False)),
        )

    def _work(self, batches: _MicroBatches, *, trains: bool) -> Work:
        model = "critic.model" if self._role == "critic" else MODEL
        return Work(
            tokens=batches.tokens,
            dtype=self._dtype("param_dtype", "bf16"),
            trains=trains,
            recomputes=bool(self._leaves.get(f"{model}.enable_gradient_checkpointing", True)),
            reshards=bool(self._leaves.get(f"{self._section}.reshard_after_forward", True)),
            on_host=self._leaves["trainer.device"] == "cpu",
        )

    def _dtype(self, name: str, absent: str) -> str:
        given = self._leaves.get(f"{self._section}.mixed_precision.{name}") or absent
        return _DTYPES[str(given)]
