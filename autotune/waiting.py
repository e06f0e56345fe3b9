"""Says that a sweep stands still because the cluster has no room for a trial.

Runs in the driver, as a Tune callback. That a trial can never fit is said before anything starts,
see :func:`autotune.placement.why_none_fits`; here others hold what it needs, or a node is gone.
Tune would wait without a word; a sweep waits too, since the cluster may get room at any time.
"""

import logging
import time
from collections.abc import Callable
from typing import Any

from ray.tune import Callback

from autotune.placement import node_bundle, why_none_fits
from autotune.settings import ResourcesConfig

logger = logging.getLogger(__name__)

PATIENCE_S = 30.0
"""How long trials may wait before it is said."""
SAY_AGAIN_S = 600.0


class WaitsForRoom(Callback):
    """Speaks up while trials are pending and none runs.

    Args:
        resources: Of one trial.
        num_storage_units: TransferQueue's, see :func:`autotune.placement.cpus_of_a_trial`.
        patience_s: How long they may wait in silence.
        say: Gets the text.
    """

    def __init__(
        self,
        resources: ResourcesConfig,
        num_storage_units: int,
        *,
        patience_s: float = PATIENCE_S,
        say: Callable[[str], None] = logger.warning,
    ) -> None:
        self._resources = resources
        self._num_storage_units = num_storage_units
        self._patience_s = patience_s
        self._say = say
        self._since_s: float | None = None
        self._said_s: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Tune pickles its configuration for Tuner.restore, which is never called here.
        return {}

    def on_step_begin(self, iteration: int, trials: list[Any], **_info: Any) -> None:
        """Look whether a trial runs; Tune calls this in every round of its loop."""
        states = {trial.status for trial in trials}
        now_s = time.monotonic()
        if "RUNNING" in states or "PENDING" not in states:
            self._since_s = self._said_s = None
            return
        if self._since_s is None:
            self._since_s = now_s
        due_s = self._since_s + self._patience_s
        if self._said_s is not None:
            due_s = self._said_s + SAY_AGAIN_S
        if now_s >= due_s:
            self._said_s = now_s
            self._say(self._text(now_s - self._since_s))

    def _text(self, waited_s: float) -> str:
        import ray

        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        problem = why_none_fits(self._resources, self._num_storage_units, nodes)
        if problem:
            return f"no trial runs for {waited_s:.0f} s: {problem} It waits for a node to come."
        free = ray.available_resources()
        bundle = node_bundle(self._resources)
        wanted = ", ".join(f"{amount:g} {name}" for name, amount in bundle.items())
        there = ", ".join(f"{free.get(name, 0.0):g} {name}" for name in bundle)
        return (
            f"no trial runs for {waited_s:.0f} s: one needs {self._resources.nodes} x ({wanted}), "
            f"{self._resources.strategy}, and {there} are free in the whole cluster; others hold "
            "the rest. It begins when there is room."
        )
