"""Several verl jobs in one Ray cluster: a TransferQueue of its own for each.

Runs in every process of a trial's verl job. TransferQueue finds its controller by a fixed actor
name in a fixed, cluster-wide namespace (transfer_queue/interface.py, ``init`` and
``_init_from_existing``): a second job would attach to the first one's controller, and the first
``tq.close()`` would kill it for both. There is no setting for it, so this one module rebinds the
two module attributes through which the interface reaches Ray. It was written for the versions
below and refuses any other.
"""

from importlib.metadata import version
from typing import Any

import ray

from autotune.errors import TrialStartError
from autotune.verl_bridge.supported import require_version

TRANSFER_QUEUE_NAMESPACE_ENV = "AUTOTUNE_TRANSFER_QUEUE_NAMESPACE"
"""Set by a trial's job for all of its processes: the Ray namespace of its own TransferQueue."""

SUPPORTED_VERSIONS = ("0.1.11",)
_FIXED_NAMESPACE = "transfer_queue"


class _RayInNamespace:
    """The ``ray`` module as the interface sees it: the fixed namespace stands for the job's own."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace

    def __getattr__(self, name: str) -> Any:
        return getattr(ray, name)

    def get_actor(self, name: str, namespace: str | None = None) -> Any:
        return ray.get_actor(
            name, namespace=self._namespace if namespace == _FIXED_NAMESPACE else namespace
        )


class _ControllerInNamespace:
    """The controller's actor class, created in the job's own namespace."""

    def __init__(self, actor_class: Any, namespace: str) -> None:
        self._actor_class = actor_class
        self._namespace = namespace

    def options(self, **options: Any) -> Any:
        if options.get("namespace") != _FIXED_NAMESPACE:
            raise TrialStartError(
                f"TransferQueue {version('TransferQueue')} created its controller with "
                f"options {options}.",
                f"Expected namespace='{_FIXED_NAMESPACE}': the isolation of trials does not know "
                "this version.",
            )
        return self._actor_class.options(**{**options, "namespace": self._namespace})


def isolate_transfer_queue(interface: Any, *, namespace: str) -> None:
    """Give this process's TransferQueue interface the namespace of its own job.

    Args:
        interface: The module ``transfer_queue.interface``, just imported.
        namespace: Ray namespace of the job's controller.

    Raises:
        TrialStartError: The installed TransferQueue is not one that this was written for.
    """
    require_version(
        "TransferQueue", SUPPORTED_VERSIONS, "trials in one cluster are kept apart for"
    )
    interface.ray = _RayInNamespace(namespace)
    interface.TransferQueueController = _ControllerInNamespace(
        interface.TransferQueueController, namespace
    )
