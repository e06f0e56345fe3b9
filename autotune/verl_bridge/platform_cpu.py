"""verl's platform interface for machines without an accelerator: torch.cpu, gloo, Ray's CPU
resource.

Runs in every verl process when VERL_PLATFORM=cpu. It never offers itself: a GPU cluster's head
node often has no GPU either, and verl's trainer there must not mistake it for a CPU job.

Memory figures are those of the process: resident set size for "allocated" and "reserved", its
high-water mark for the peaks (resettable through ``/proc/self/clear_refs``).
"""

import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry


def _resident_bytes() -> int:
    return psutil.Process().memory_info().rss


def peak_resident_bytes() -> int:
    """High-water mark of this process's resident set since the last reset."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except FileNotFoundError:
        return _resident_bytes()
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return _resident_bytes()


def reset_peak_resident_bytes() -> None:
    """Let the high-water mark start again from the present resident set; a no-op outside Linux."""
    clear_refs = Path("/proc/self/clear_refs")
    if clear_refs.exists():
        clear_refs.write_text("5", encoding="ascii")


class _CPUDeviceModule(types.ModuleType):
    """torch.cpu plus the memory, device and RNG functions that verl calls on an accelerator's
    module."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)


def _device_module() -> types.ModuleType:
    module = _CPUDeviceModule("autotune.verl_bridge.device_cpu")
    functions: dict[str, Any] = {
        "memory_allocated": lambda *args: _resident_bytes(),
        "memory_reserved": lambda *args: _resident_bytes(),
        "max_memory_allocated": lambda *args: peak_resident_bytes(),
        "max_memory_reserved": lambda *args: peak_resident_bytes(),
        "mem_get_info": lambda *args: (
            psutil.virtual_memory().available,
            psutil.virtual_memory().total,
        ),
        "reset_peak_memory_stats": lambda *args: reset_peak_resident_bytes(),
        "empty_cache": lambda *args: None,
        # verl's FLOPs counter has a row of that name (verl/utils/flops_counter.py)
        "get_device_name": lambda *args: "CPU",
        "get_rng_state": lambda *args: torch.get_rng_state(),
        "set_rng_state": lambda state, *args: torch.set_rng_state(state),
        "manual_seed": torch.manual_seed,
        "manual_seed_all": torch.manual_seed,
        "set_device": lambda *args: None,
        "synchronize": lambda *args: None,
        # verl passes it to Tensor.to()
        "current_device": lambda: "cpu",
        "device_count": lambda: 1,
        "is_available": lambda: True,
    }
    for name, function in functions.items():
        setattr(module, name, function)
    return module


_DEVICE_MODULE = _device_module()


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """The CPU as verl's device. Every method is verl's interface; see
    ``verl/plugin/platform/platform_base.py``."""

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "generic"

    @property
    def device_module(self) -> types.ModuleType:
        return _DEVICE_MODULE

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False

    def current_device(self) -> Any:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        return None

    def synchronize(self, device_index: int | None = None) -> None:
        return None

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        return None

    def empty_cache(self) -> None:
        return None

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "VERL_CPU_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        return None

    def profiler_stop(self) -> None:
        return None

    def ray_resource_name(self) -> str:
        return "CPU"

    def ray_resource_options(self, num_gpus: float) -> dict[str, Any]:
        # Ray refuses resources={"CPU": ...}
        return {"num_cpus": num_gpus}

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> Any:
        return None
