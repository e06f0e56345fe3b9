"""Phases of a worker on the CPU's real platform, and of methods that verl has registered."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from verl.plugin.platform import get_platform, set_platform

from autotune.verl_bridge.platform_cpu import PlatformCPU
from autotune.verl_bridge.worker_phases import METER, PhaseMeter, in_phase

NUM_BYTES = 256 << 20


@pytest.fixture(autouse=True)
def on_cpu() -> Iterator[None]:
    # verl asks for its platform once a process, and another test may have been first.
    before = get_platform()
    set_platform(PlatformCPU())
    METER.begin_step()
    yield
    set_platform(before)


class Worker:
    """Stands for verl's worker: a registered method carries an attribute."""

    def score(self, batch: str) -> str:
        return batch.upper()

    async def sync(self) -> int:
        await asyncio.sleep(0)
        return 7


setattr(Worker.score, "registered", "dispatch")


def test_a_phase_has_its_span_and_a_new_step_forgets_it() -> None:
    with METER.phase("ref"):
        pass
    start_us, end_us = METER.phases["ref"].span_us
    assert 0 < start_us <= end_us
    METER.begin_step()
    assert METER.phases == {}


def test_memory_counts_in_the_phase_that_took_it_and_in_the_step() -> None:
    meter = PhaseMeter()
    meter.begin_step()
    with meter.phase("update_actor"):
        torch.ones(NUM_BYTES, dtype=torch.uint8).sum()
    with meter.phase("ref"):
        pass
    update, ref = meter.phases["update_actor"], meter.phases["ref"]
    assert update.reserved_bytes > ref.reserved_bytes + NUM_BYTES // 2
    assert meter.reserved_bytes >= update.reserved_bytes


def test_a_phase_inside_a_phase_is_part_of_it() -> None:
    with METER.phase("old_log_prob"), METER.phase("values"):
        pass
    assert list(METER.phases) == ["old_log_prob"]


def test_a_phase_that_fails_is_over() -> None:
    with pytest.raises(ZeroDivisionError), METER.phase("ref"):
        raise ZeroDivisionError
    with METER.phase("values"):
        pass
    assert list(METER.phases) == ["ref", "values"]


def test_a_method_keeps_what_it_returns_and_what_verl_registered() -> None:
    measured: Any = in_phase(lambda batch: f"phase_of_{batch}", Worker.score)
    assert measured(Worker(), "a") == "A"
    assert measured.registered == "dispatch"
    assert list(METER.phases) == ["phase_of_a"]


def test_a_coroutine_is_measured_to_its_end() -> None:
    measured = in_phase("update_weights", Worker.sync)
    assert asyncio.iscoroutinefunction(measured)
    assert asyncio.run(measured(Worker())) == 7
    assert list(METER.phases) == ["update_weights"]


def test_the_cpu_has_no_allocator_that_retries() -> None:
    assert METER.alloc_retries() is None
