"""Whether the devices of a trial are empty again after a job was killed.

Runs in the trial actor, which has no device itself, and for each device in a Ray task on its bundle
of the placement group. A killed job's device memory comes back some time after its processes are
gone; a cold job that starts earlier runs out of memory through no fault of its setting. Without
accelerators there is nothing to wait for.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autotune.errors import TrialStartError

SLACK_BYTES = 256 << 20
"""How far above its baseline a device counts as empty: contexts of monitoring tools come and go."""
_POLL_S = 1.0

_TORCH_PROBE = (
    "import torch\n"
    "for index in range(torch.cuda.device_count()):\n"
    "    free, total = torch.cuda.mem_get_info(index)\n"
    "    print(total - free)\n"
)


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """Memory of one bundle's devices."""

    name: str
    """Node and device, for messages."""
    used_bytes: int


def measure_visible() -> DeviceUse:
    """Measure the devices that this process may use; run as a Ray task on one bundle."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    try:
        lines = _run(
            "nvidia-smi",
            f"--id={visible}",
            "--query-gpu=memory.used",
            "--format=csv,noheader,nounits",
        )
        used_bytes = sum(int(line) << 20 for line in lines)
    except FileNotFoundError:
        # In a process of its own: its context would stay on the device.
        used_bytes = sum(int(line) for line in _run(sys.executable, "-c", _TORCH_PROBE))
    return DeviceUse(f"device {visible} of {os.uname().nodename}", used_bytes)


def _run(*command: str) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {(done.stderr or done.stdout).strip()[:300]}")
    return done.stdout.split("\n")[:-1]


class DeviceMemory:
    """The devices of a trial's placement group.

    Args:
        group: The placement group, ready.
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        specs = enumerate(group.bundle_specs)
        self._devices_of_bundle = {
            index: spec["GPU"] for index, spec in specs if spec.get("GPU", 0) > 0
        }
        self._baseline: list[DeviceUse] | None = None

    def wait_until_empty(self, timeout_s: float) -> None:
        """Wait until every device is back at what it held before the first job.

        The first call, before any job, measures the baseline.

        Raises:
            TrialStartError: A device is not free or not empty in time.
        """
        if not self._devices_of_bundle:
            return
        deadline = time.monotonic() + timeout_s
        if self._baseline is None:
            self._baseline = self._measure(deadline)
            return
        while True:
            now = self._measure(deadline)
            above = too_full(self._baseline, now)
            if not above:
                return
            if time.monotonic() > deadline:
                raise TrialStartError(
                    f"Device memory did not come back within {timeout_s:g} s after the last job: "
                    f"{'; '.join(above)}.",
                    "Some process still holds it: see nvidia-smi on that node.",
                )
            time.sleep(_POLL_S)

    def _measure(self, deadline: float) -> list[DeviceUse]:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        measure = ray.remote(measure_visible)
        tasks = [
            measure.options(
                num_cpus=0,
                num_gpus=count,
                max_retries=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self._group, placement_group_bundle_index=index
                ),
            ).remote()
            for index, count in self._devices_of_bundle.items()
        ]
        try:
            return list(ray.get(tasks, timeout=max(1.0, deadline - time.monotonic())))
        except ray.exceptions.GetTimeoutError as error:
            for task in tasks:
                ray.cancel(task, force=True)
            raise TrialStartError(
                "Ray did not give the trial's devices back after its last job was killed."
            ) from error


def too_full(baseline: Sequence[DeviceUse], now: Sequence[DeviceUse]) -> list[str]:
    """Return the devices that hold more than before, in words."""
    return [
        f"{after.name} holds {after.used_bytes / 2**30:.2f} GiB, before it held "
        f"{before.used_bytes / 2**30:.2f} GiB"
        for before, after in zip(baseline, now, strict=True)
        if after.used_bytes > before.used_bytes + SLACK_BYTES
    ]
