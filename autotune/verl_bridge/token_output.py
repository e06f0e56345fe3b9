"""What the rollout ``hf`` returns for one request.

Runs in the sampling server and in verl's agent loops. It has the fields of verl's ``TokenOutput``
(workers/rollout/replica.py) without importing verl, so that the server need not.
"""

from typing import Any

from pydantic import BaseModel


class HFTokenOutput(BaseModel):
    """One sampled response; read by attribute, like verl's own class."""

    token_ids: list[int]
    log_probs: list[float] | None = None
    """Log-probability of each token, in nats."""
    routed_experts: Any = None
    stop_reason: str | None = None
    num_preempted: int | None = None
    extra_fields: dict[str, Any] = {}
    """``global_steps``: version of the weights that produced the tokens."""
