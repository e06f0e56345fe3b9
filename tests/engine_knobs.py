"""What turning each knob of verl's own engines changes in an update that was recorded.

tests/verl_bridge/test_overlap.py runs the cases on real engines; tests/test_knobs_act.py holds the
list against the catalogue.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ATTENTION = "aten::_scaled_dot_product_flash_attention_for_cpu"


@dataclass(frozen=True, kw_only=True)
class Turned:
    """A knob's other value, where verl's workers put it, and the operator whose count it changes.

    The update is one of two micro-batches of two sequences on two ranks.
    """

    operator: str
    """Part of the operator's name."""
    is_more: bool
    """Whether it runs more often, or less."""
    engine: dict[str, Any] = field(default_factory=dict)
    model_config: dict[str, Any] = field(default_factory=dict)
    batch: dict[str, Any] = field(default_factory=dict)
    model_type: str = "language_model"
    against: str = "plain"
    """Case of test_overlap.py that is the other side."""


ENTROPY = {"calculate_entropy": True}
FEW_TOKENS, MANY_TOKENS = (
    {"use_dynamic_bsz": True, "max_token_len_per_gpu": tokens} for tokens in (21, 1000)
)
FORWARD_ONLY = {"forward_only": True}
TURNED: Mapping[str, Turned] = {
    "ppo_micro_batch_size_per_gpu": Turned(
        batch={"micro_batch_size_per_gpu": 1}, operator=ATTENTION, is_more=True
    ),
    "log_prob_micro_batch_size_per_gpu": Turned(
        engine=FORWARD_ONLY,
        batch={"micro_batch_size_per_gpu": 1},
        operator=ATTENTION,
        is_more=True,
        against="ref_plain",
    ),
    "use_dynamic_bsz": Turned(batch=MANY_TOKENS, operator=ATTENTION, is_more=False),
    "ppo_max_token_len_per_gpu": Turned(
        batch=FEW_TOKENS, operator=ATTENTION, is_more=True, against="turned_use_dynamic_bsz"
    ),
    "log_prob_max_token_len_per_gpu": Turned(
        engine=FORWARD_ONLY,
        batch=MANY_TOKENS,
        operator=ATTENTION,
        is_more=False,
        against="ref_plain",
    ),
    "critic_ppo_infer_max_token_len_per_gpu": Turned(
        model_type="value_model",
        batch=MANY_TOKENS,
        operator=ATTENTION,
        is_more=False,
        against="critic_plain",
    ),
    "reshard_after_forward": Turned(
        engine={"reshard_after_forward": False}, operator="_allgather_base", is_more=False
    ),
    "use_no_sync_for_gradient_accumulation": Turned(
        engine={"use_no_sync_for_gradient_accumulation": True},
        operator="_reduce_scatter_base",
        is_more=False,
    ),
    # Replicas add up their gradients instead of sharding them.
    "fsdp_size": Turned(engine={"fsdp_size": 1}, operator="allreduce", is_more=True),
    "enable_gradient_checkpointing": Turned(
        model_config={"enable_gradient_checkpointing": False}, operator=ATTENTION, is_more=False
    ),
    "use_remove_padding": Turned(
        model_config={"use_remove_padding": False},
        batch={"use_remove_padding": False},
        operator="_jagged_to_padded_dense_forward",
        is_more=True,
    ),
    "entropy_checkpointing": Turned(
        engine={"entropy_checkpointing": True},
        batch=ENTROPY,
        operator="aten::_softmax",
        is_more=True,
        against="entropy",
    ),
    # verl patches the model's class for the life of the process: the last one.
    "use_fused_kernels": Turned(
        model_config={
            "use_fused_kernels": True,
            "fused_kernel_options": {"impl_backend": "torch"},
        },
        batch={"use_fused_kernels": True},
        operator="_log_softmax",
        is_more=True,
    ),
}
"""Knob -> its case, in the order in which they run."""
